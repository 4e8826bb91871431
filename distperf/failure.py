"""How a rank says why it ends: to the agent, to torchrun's error file, and to people on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path

from distperf.contract import Reporter
from distperf.errors import DistperfError


def report_failure(error: Exception, reporter: Reporter) -> None:
    """Tell everyone who may listen. On stderr a DistperfError is only its text; others have a traceback."""
    text = "".join(traceback.format_exception(error))
    reporter.send(
        "error", type=type(error).__name__, message=str(error), traceback=text, frame=innermost_frame(error)
    )
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        _write_torch_error_file(Path(path), error, text)
    print(f"error: {error}" if isinstance(error, DistperfError) else text, file=sys.stderr, flush=True)


def innermost_frame(error: BaseException) -> str:
    """`file:line in function` of the deepest frame outside installed packages and Python's own library."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_library(frame.filename)] or list(frames)
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""


def _is_library(filename: str) -> bool:
    return "site-packages" in filename or filename.startswith((os.path.dirname(os.__file__), "<"))


def _write_torch_error_file(path: Path, error: Exception, text: str) -> None:
    """Torch's own layout: a message, and a time in whole seconds as text."""
    extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
    body = {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}
    try:
        path.write_text(json.dumps(body), encoding="utf-8")
    except OSError as problem:
        print(f"{path}: cannot write the error file: {problem.strerror}", file=sys.stderr)
