"""What `distperf check` asks a node: its limits, disks, devices and names, what an earlier run left, who it reaches.

Nothing here waits longer than a few seconds, and nothing is changed but for files made and removed at once.
"""

import errno
import os
import re
import resource
import selectors
import socket
import subprocess
import tempfile
import threading
import time
from typing import Any, Dict, List, Optional, Set, Tuple

from launcher.agent import tier
from launcher.agent.processes import TOKEN_ENV
from launcher.agent.spool import unowned

SMI_LIMIT_S = 20.0  # a healthy nvidia-smi answers in one or two; one on a broken driver may never
SMI_FIELDS = (
    "index", "name", "memory.total", "memory.used", "temperature.gpu", "ecc.errors.uncorrected.volatile.total",
    "driver_version",
)  # fmt: skip
SHM = "/dev/shm"
WRITTEN_BYTES = 64 << 10
MAX_LEFTOVERS = 50  # told of one node
SPOOL = re.compile(
    r"distperf-.+-\d{8}-\d{6}-[0-9a-f]{4}-[^-]{8}"
)  # of a run id (launcher.rundir): nothing else's


def survey(folders: List[str]) -> Dict[str, Any]:
    """Everything about this node alone. `folders`: where the run will write, the temporary folder is added."""
    return {
        "temp": tempfile.gettempdir(),
        "folders": {folder: space(folder) for folder in [*folders, tempfile.gettempdir()]},
        "shm": space(SHM),
        "open_files": _soft_limit(resource.RLIMIT_NOFILE),
        "locked_bytes": _soft_limit(resource.RLIMIT_MEMLOCK),
        "rdma": os.path.isdir("/dev/infiniband"),
        "hostname": socket.gethostname(),
        "names": addresses_of(socket.gethostname()),
        "devices": nvidia_smi(),
        "processes": left_processes(_command(os.getpid())[-1:]),
        "spools": left_spools() + (tier.left(SHM) if os.path.isdir(SHM) else []),
    }


def clock() -> float:
    """This node's wall clock."""
    return time.time()


def _soft_limit(kind: int) -> Optional[int]:
    limit = resource.getrlimit(kind)[0]
    return None if limit == resource.RLIM_INFINITY else limit


# Disks.


def space(folder: str) -> Dict[str, Any]:
    """Free and total bytes at `folder`, or where it would be made, and why nothing can be written there, if so."""
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    try:
        state = os.statvfs(folder)
    except OSError as error:
        return {"at": folder, "free_bytes": 0, "total_bytes": 0, "error": error.strerror}
    found = {"at": folder, "free_bytes": state.f_bavail * state.f_frsize, "error": None}
    found["total_bytes"] = state.f_blocks * state.f_frsize
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(WRITTEN_BYTES))
            file.flush()
    except OSError as error:
        found["error"] = error.strerror
    return found


# Names.


def addresses_of(name: str) -> List[str]:
    """What this node's own resolver makes of a name; [] when it does not know it."""
    try:
        infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(info[4][0]) for info in infos})


# Devices.


def nvidia_smi() -> Optional[Dict[str, Any]]:
    """{rows: a list of SMI_FIELDS as text for each device, error}; None where there is no nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=" + ",".join(SMI_FIELDS), "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SMI_LIMIT_S
        )  # fmt: skip
    except FileNotFoundError:
        return None
    except OSError as error:
        return {"rows": [], "error": error.strerror}
    except subprocess.TimeoutExpired:
        return {"rows": [], "error": "no answer within %d s" % SMI_LIMIT_S}
    text = done.stdout.decode("utf-8", "replace").strip()
    rows = [[value.strip() for value in line.split(",")] for line in text.splitlines()]
    if done.returncode != 0 or any(len(row) != len(SMI_FIELDS) for row in rows):
        return {"rows": [], "error": text[-500:]}
    return {"rows": rows, "error": None}


# What an earlier run left.


def left_processes(agent: List[bytes]) -> List[Dict[str, Any]]:
    """Processes of this user that carry a run's token although no living agent is above them: pid, token, command.

    agent: what every agent's command line ends with, the first stage.
    """
    found: List[Dict[str, Any]] = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or len(found) == MAX_LEFTOVERS:
            continue
        token = _token(int(name))
        if token is not None and not _under_agent(int(name), agent):
            command = b" ".join(_command(int(name)))[:200].decode("utf-8", "replace")
            found.append({"pid": int(name), "token": token, "command": command})
    return found


def _token(pid: int) -> Optional[str]:
    try:
        if os.stat("/proc/%d" % pid).st_uid != os.getuid():
            return None
        with open("/proc/%d/environ" % pid, "rb") as file:
            words = file.read().split(b"\0")
    except OSError:  # ended meanwhile
        return None
    head = TOKEN_ENV.encode() + b"="
    return next(
        (word[len(head) :].decode("utf-8", "replace") for word in words if word.startswith(head)), None
    )


def _under_agent(pid: int, agent: List[bytes]) -> bool:
    """Some process above this one is an agent. Orphans of a rank are handed to their agent by the kernel."""
    seen: Set[int] = set()
    while pid > 1 and pid not in seen:
        seen.add(pid)
        if _command(pid)[-1:] == agent:
            return True
        pid = _parent(pid)
    return False


def _command(pid: int) -> List[bytes]:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return file.read().rstrip(b"\0").split(b"\0")
    except OSError:
        return []


def _parent(pid: int) -> int:
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])  # a command may hold blanks and brackets
    except (OSError, IndexError):
        return 0


def left_spools() -> List[str]:
    """Folders with rank output of this user whose agent is gone: a living one holds a lock on its folder."""
    root = tempfile.gettempdir()
    found: List[str] = []
    for name in sorted(os.listdir(root)):
        folder = os.path.join(root, name)
        if SPOOL.fullmatch(name) and len(found) < MAX_LEFTOVERS and unowned(folder):
            found.append(folder)
    return found


# Who reaches whom.

_listening: List[Tuple[socket.socket, threading.Thread]] = []


def listen(address: str, ports: List[int]) -> List[int]:
    """Listen on `address` for the other nodes' `dial`: on each port, where 0 is one that the kernel picks."""
    unlisten()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        thread = threading.Thread(target=_accept, args=(listener,), daemon=True)
        try:
            listener.bind((address, port))
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
        thread.start()
        _listening.append((listener, thread))
    return [listener.getsockname()[1] for listener, _ in _listening]


def _accept(listener: socket.socket) -> None:
    """Take calls and hang up. Without it, hundreds of nodes would fill the kernel's queue (128 on older ones)."""
    while True:
        try:
            call, _ = listener.accept()
        except OSError:  # shut down by `unlisten`
            return
        call.close()


def unlisten() -> bool:
    """Close what `listen` opened; no thread is left, since ranks are forked."""
    while _listening:
        listener, thread = _listening.pop()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()
    return True


def dial(targets: Dict[str, List[Any]], limit_s: float) -> Dict[str, List[Optional[str]]]:
    """Connect to everyone at once. targets: name -> [address, ports]; the result has what went wrong with each port."""
    results: Dict[str, List[Optional[str]]] = {}
    with selectors.DefaultSelector() as selector:
        for name, (address, ports) in targets.items():
            results[name] = ["no answer within %g s" % limit_s] * len(ports)
            for place, port in enumerate(ports):
                caller = socket.socket(
                    socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM
                )
                caller.setblocking(False)
                code = caller.connect_ex((address, port))
                if code not in (0, errno.EINPROGRESS):
                    results[name][place] = os.strerror(code)
                    caller.close()
                    continue
                selector.register(caller, selectors.EVENT_WRITE, (name, place))
        _await(selector, results, time.monotonic() + limit_s)
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return results


def _await(
    selector: selectors.BaseSelector, results: Dict[str, List[Optional[str]]], deadline: float
) -> None:
    while selector.get_map() and time.monotonic() < deadline:
        for key, _ in selector.select(deadline - time.monotonic()):
            name, place = key.data
            caller = key.fileobj
            assert isinstance(caller, socket.socket)
            code = caller.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            results[name][place] = os.strerror(code) if code else None
            selector.unregister(caller)
            caller.close()
