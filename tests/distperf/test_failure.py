"""How a rank says why it ends."""

from __future__ import annotations

import json
import os

import pytest
import torch

from distperf.contract import Reporter
from distperf.errors import CheckpointError
from distperf.failure import innermost_frame, report_failure


def fail(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.fixture
def reported():
    """(reporter, function that returns the records sent)."""
    read, write = os.pipe()
    yield Reporter(write), lambda: [json.loads(line) for line in os.read(read, 1 << 16).splitlines()]
    os.close(read)
    os.close(write)


def test_an_error_reaches_agent_and_torchruns_file(reported, tmp_path, monkeypatch, capsys):
    """The record carries type, message, traceback and frame; the file is in torch's own layout."""
    reporter, records = reported
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    report_failure(fail(ValueError("no good")), reporter)
    (record,) = records()
    assert (record["kind"], record["type"], record["message"]) == ("error", "ValueError", "no good")
    assert "ValueError: no good" in record["traceback"]
    assert "test_failure.py" in record["frame"]
    body = json.loads(file.read_text())["message"]
    assert body["message"] == "ValueError: no good"
    assert body["extraInfo"]["timestamp"].isdigit()
    assert "Traceback" in body["extraInfo"]["py_callstack"]
    assert "Traceback" in capsys.readouterr().err


def test_what_a_user_can_cause_is_shown_without_traceback(reported, monkeypatch, capsys):
    """A DistperfError's text is the answer."""
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    report_failure(fail(CheckpointError("disk full")), reported[0])
    assert capsys.readouterr().err == "error: disk full\n"


def test_the_frame_is_the_users_not_the_librarys():
    """An error raised deep inside torch is reported at the line that called it."""
    with pytest.raises(RuntimeError) as caught:
        torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 5))
    assert "test_the_frame_is_the_users" in innermost_frame(caught.value)
