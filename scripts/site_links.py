"""For mkdocs: the README is the site's first page, and links to files that are no page become their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
PAGES = {"README.md": "index.md"}


def on_files(files: Files, config: Any) -> Files:
    """Add the README. Its links begin at the root, those of the other pages in docs/."""
    text = (ROOT / "README.md").read_text("utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Keep links between pages; of others, keep the words."""
    there = {file.src_uri for file in files}

    def kept(match: re.Match[str]) -> str:
        words, link = match.groups()
        name, _, anchor = link.partition("#")
        if "://" in link or not name or name in there:
            return match[0]
        page_name = PAGES.get(name.removeprefix("../"))
        return f"[{words}]({page_name}{'#' + anchor if anchor else ''})" if page_name else words

    return LINK.sub(kept, markdown)
