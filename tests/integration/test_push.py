"""A virtual environment on hosts without an index, over real SSH."""

from __future__ import annotations

import json
import sys
import zipfile

import pytest
from integration.launches import distperf

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(400)]


def wheel(folder, name, version, requires=""):
    """A wheel of one module, as small as one can be."""
    info, needs = f"{name}-{version}.dist-info", f"Requires-Dist: {requires}\n" if requires else ""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_the_same_environment_on_every_host(tmp_path, lab, monkeypatch):
    """Made from wheels that are sent along; there the second time; a run activates it; what pip cannot find is told,
    with exit code 3, and the environment before stays.
    """
    monkeypatch.setenv("DISTPERF_SSH_CONFIG", str(lab.dir / "ssh_config"))
    (tmp_path / "hosts").write_text("host1 slots=1\nhost2 slots=1\n")
    (tmp_path / "wheels").mkdir()
    wheel(tmp_path / "wheels", "inner", "2.0")
    outer = wheel(tmp_path, "outer", "1.0", requires="inner>=2")
    (tmp_path / "lock.txt").write_text("outer==1.0\ninner==2.0\n")
    command = (
        "push",
        "lock.txt",
        str(outer),
        "--find-links",
        "wheels",
        "--python",
        sys.executable,
        "--hosts",
        "hosts",
    )

    first = distperf(tmp_path, *command, limit_s=300)
    assert first.returncode == 0, first.stdout + first.stderr
    assert [line.split()[:2] for line in first.stdout.splitlines()[1:]] == [
        ["host1", "made"],
        ["host2", "made"],
    ]
    second = distperf(tmp_path, *command)
    assert [line.split()[:2] for line in second.stdout.splitlines()[1:]] == [
        ["host1", "there"],
        ["host2", "there"],
    ]

    (tmp_path / "show.py").write_text("import inner, outer, sys; print('has', inner.VERSION, sys.prefix)\n")
    launch = {
        "setup": ["source ~/.cache/distperf/env/bin/activate"],
        "sync": {"source": "."},
        "warm_start": False,
    }
    (tmp_path / "r.yaml").write_text(
        json.dumps({"name": "r", "script": {"path": "show.py"}, "launch": launch})
    )
    run = distperf(tmp_path, "launch", "r.yaml", "--hosts", "hosts")
    assert run.stdout.count("has 2.0 /home/trainer/.cache/distperf/env") == 2, run.stderr

    (tmp_path / "lock.txt").write_text("missing==1.0\n")
    third = distperf(tmp_path, *command, limit_s=300)
    assert third.returncode == 3
    assert third.stdout.count("No matching distribution found for missing==1.0") == 2, third.stdout
    assert distperf(tmp_path, "launch", "r.yaml", "--hosts", "hosts").returncode == 0


def test_a_file_that_is_not_there_is_bad_usage(tmp_path):
    """Exit code 2; no host is asked."""
    done = distperf(tmp_path, "push", "lock.txt")
    assert (done.returncode, "lock.txt" in done.stderr) == (2, True)
