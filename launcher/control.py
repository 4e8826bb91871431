"""The control socket: how another process of the same user asks a controller for something.

One connection, one JSON line each way: {"do": "stop"}, or "kill", "stacks" (of all ranks, into the journal), "save" (a
checkpoint now), "profile" (with ranks and steps; the answer has the id of the traces), or "ping" -> {"pid": ...,
"state": ...}, or {"refused": why} where the run cannot do it now, or {"error": ...}.

The socket lies in /tmp and not in $XDG_RUNTIME_DIR, which is emptied when its user logs out: a detached run outlives
that. What keeps others away is the folder (0700, owned by us, no symlink), the socket's mode, and the kernel's word on
who has connected. A controller without a socket can still be stopped by signal.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.state import RunState

DOINGS = ("stop", "kill", "stacks", "save", "profile", "ping")
ASK_LIMIT_S = 10.0
ANSWER_LIMIT_S = 2.0
MAX_LINE_BYTES = 4096


@dataclass(frozen=True)
class Request:
    """What another process asks for, and how it is answered, once."""

    do: str
    answer: Callable[[dict[str, Any]], None]
    args: dict[str, Any] = field(default_factory=dict)


def socket_folder(uid: int) -> Path:
    """Where a user's sockets are."""
    return Path(f"/tmp/distperf-{uid}")


def socket_name(run: Path) -> str:
    """Short, since a socket's path may have 104 bytes and a run's folder any length; the id's end is for people."""
    return f"{run.name[-20:]}-{hashlib.sha256(os.fsencode(run)).hexdigest()[:8]}"


def may_ask(peer_uid: int, own_uid: int) -> bool:
    """Whom a controller listens to: its own user, and root, who could send signals as well."""
    return peer_uid in (0, own_uid)


def make_private(folder: Path) -> None:
    """Make the folder, or see that it is ours alone. Raises OSError, PermissionError with a reason."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder} is not a folder")
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to user {found.st_uid}, not to {os.geteuid()}")
    if found.st_mode & 0o077:
        raise PermissionError(f"{folder} has mode {stat.S_IMODE(found.st_mode):o}, not 700")


@contextmanager
def listening(run: Path, deliver: Callable[[Request], None], folder: Path | None = None) -> Iterator[str]:
    """Hand every request for this run to `deliver`, from a thread. Yields the socket's path. Raises OSError."""
    folder = folder or socket_folder(os.geteuid())
    make_private(folder)
    _sweep(folder)
    path = folder / socket_name(run)
    hidden = path.with_name(f".{path.name}")  # until somebody listens: others may be sweeping
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(hidden))
        try:
            hidden.chmod(0o600)
            listener.listen(8)
            hidden.rename(path)
            threading.Thread(target=_accept, args=(listener, deliver), daemon=True).start()
            try:
                yield os.fspath(path)
            finally:
                listener.shutdown(socket.SHUT_RDWR)  # ends the wait in accept
        finally:
            path.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Remove what controllers that were killed have left: sockets at which nobody listens."""
    for path in folder.glob("[!.]*"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(os.fspath(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:  # it has just gone, or is too busy to be dead
                pass


def _accept(listener: socket.socket, deliver: Callable[[Request], None]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # the listener is closed
            return
        try:
            connection.settimeout(ANSWER_LIMIT_S)
            _take(connection, deliver)
        except OSError:  # the asker has left, or says nothing
            connection.close()


def _take(connection: socket.socket, deliver: Callable[[Request], None]) -> None:
    def answer(value: dict[str, Any]) -> None:
        with connection:
            try:
                connection.sendall(json.dumps(value).encode() + b"\n")
            except OSError:  # the asker has not waited
                pass

    args = _read(connection)  # first, so that a refusal does not meet a peer that is still sending
    do = args.get("do")
    if not may_ask(_peer_uid(connection), os.geteuid()):
        answer({"error": "this run belongs to another user"})
    elif do in DOINGS:
        deliver(Request(do, answer, args))
    else:
        answer({"error": f"a request is a JSON line with do: {', '.join(DOINGS)}"})


def _read(connection: socket.socket) -> dict[str, Any]:
    """One line's JSON object; {} for anything else."""
    data = b""
    while b"\n" not in data and len(data) < MAX_LINE_BYTES:
        piece = connection.recv(MAX_LINE_BYTES)
        if not piece:
            break
        data += piece
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _peer_uid(connection: socket.socket) -> int:
    if sys.platform == "darwin":
        credentials = connection.getsockopt(0, 1, 76)  # SOL_LOCAL, LOCAL_PEERCRED: struct xucred
        return int(struct.unpack_from("II", credentials)[1])
    size = struct.calcsize("iII")
    return int(struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1])


def ask(path: str, do: str, **args: Any) -> dict[str, Any]:
    """Ask the controller behind a socket; its answer, {} when it ended meanwhile.

    Raises FileNotFoundError or ConnectionRefusedError where nobody listens, PermissionError where we may not ask, and
    TimeoutError from a controller that is busy: it has the request, though.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ASK_LIMIT_S)
        connection.connect(path)
        try:
            connection.sendall(json.dumps({"do": do, **args}).encode() + b"\n")
            answer = _read(connection)
        except (BrokenPipeError, ConnectionResetError):
            return {}
    if "error" in answer:
        raise PermissionError(answer["error"])
    return answer


NO_ARGS: Mapping[str, Any] = {}
_THINGS = {"save": "checkpoint", "profile": "trace"}


def refusal(do: str, state: RunState, args: Mapping[str, Any] = NO_ARGS) -> str | None:
    """Why a run in this state cannot do what is asked, if so. Pure."""
    if do not in ("save", "profile"):
        return None
    if state.policy.script:
        return f"the run is a script of yours, which cannot be asked for a {_THINGS[do]}"
    if state.state != "running":
        return f"the run is {state.state}; only ranks that run can be asked"
    if do == "profile" and not _are_ranks(args.get("ranks"), len(state.ranks)):
        return f"a trace wants ranks, a list of numbers below {len(state.ranks)}"
    if do == "profile" and not isinstance(args.get("steps"), int):
        return "a trace wants steps, a number"
    return None


def _are_ranks(value: Any, count: int) -> bool:
    whole = isinstance(value, list) and all(isinstance(rank, int) and 0 <= rank < count for rank in value)
    return whole and bool(value)
