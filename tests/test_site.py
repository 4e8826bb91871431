"""The documentation builds as a site, strictly, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    """Every link and anchor leads somewhere, every page is in the navigation, and no page needs a network."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = list((tmp_path / "site").glob("*.html"))
    assert {"index.html", "cli.html", "recipe.html", "dashboard.html"} <= {page.name for page in pages}
    loaded = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=[\"'](?:https?:)?//")
    assert [page.name for page in pages if loaded.search(page.read_text())] == []
