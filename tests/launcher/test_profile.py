import gzip
import json

import pytest

from launcher.errors import LauncherError, UsageError
from launcher.profile import chosen, profile_run, read
from scripts.recorded_run import record


def test_which_ranks():
    """A set, or the first few; what is not there, too many and nonsense are refused."""
    assert chosen(None, 3) == (0, 1, 2)
    assert chosen(None, 1000) == tuple(range(8))
    assert chosen("7,0-1", 8) == (0, 1, 7)
    for text in ("8", "0-99", "x", ""):
        with pytest.raises(UsageError, match="--rank"):
            chosen(text, 8)
    with pytest.raises(UsageError, match="at most 64"):
        chosen("0-99", 1000)


def test_a_run_that_is_over(tmp_path):
    """There is nobody to ask."""
    run = record(tmp_path / "r", nodes=1, slots=2, steps=20, alive=False).run
    with pytest.raises(UsageError, match="is over"):
        profile_run(run, 3, None)


def test_damaged_traces(tmp_path):
    """Cut off, no JSON, or no object: one sentence."""
    whole = tmp_path / "rank.json.gz"
    whole.write_bytes(gzip.compress(json.dumps({"traceEvents": []}).encode()))
    assert read(whole) == {"traceEvents": []}
    for data in (whole.read_bytes()[:-9], gzip.compress(b"[1"), gzip.compress(b"[]"), b"plain"):
        whole.write_bytes(data)
        with pytest.raises(LauncherError, match="is no trace"):
            read(whole)
