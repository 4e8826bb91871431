"""What a controller may ask a node before and between attempts. Each function's arguments come from the message."""

import os
import random
import socket
import subprocess
from typing import Any, Callable, Dict, List, Optional

from launcher.agent import probes, processes, stock
from launcher.agent.facts import interface_of


def answer(question: str, args: Dict[str, Any]) -> Any:
    """Dispatch one question. Raises OSError or ValueError; the text is the answer then."""
    return _QUESTIONS[question](**args)


def pick_port(address: str, tries: int = 200) -> int:
    """A port of `address` that nobody listens on, below the range that the kernel gives to outgoing connections.

    It is free now and only likely to be free when rank 0 binds it: an attempt that loses that race says so.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    low, high = 10000, _first_outgoing_port() - 1
    for port in random.sample(range(low, high), min(tries, high - low)):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise OSError("no free port between %d and %d on %s" % (low, high, address))


def _first_outgoing_port() -> int:
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            return max(12000, int(file.read().split()[0]))
    except OSError:
        return 32768


def source_address(peer: str) -> Optional[str]:
    """This node's address on the way to `peer` (a name or address), or None when it has no way. Sends nothing."""
    try:
        infos = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, _, _, where in infos:
        with socket.socket(family, kind) as probe:
            try:
                probe.connect(where)  # of a datagram socket: chooses a route, sends nothing
            except OSError:
                continue
            return str(probe.getsockname()[0])
    return None


def interface(address: str) -> Optional[str]:
    """Name of the interface that holds `address`."""
    return interface_of(address)


def python(
    candidates: List[str], workdir: str, modules: List[str], setup: Optional[Dict[str, Any]] = None
) -> Dict[str, Any]:
    """The first of `candidates` that exists, whether workdir can be entered, and versions of `modules` in it.

    A module's version is None when it is not installed; the interpreter's own stands under "python" (where modules
    are asked for). Nothing is imported: torch alone would cost a second. setup: see `processes.after_setup`.
    """
    if not os.path.isdir(workdir) or not os.access(workdir, os.X_OK):
        return {"workdir": False, "python": None, "versions": {}}
    for candidate in candidates:
        found = _versions(candidate, workdir, modules, processes.after_setup(os.environb, setup))
        if found is not None:
            return {"workdir": True, "python": candidate, "versions": found}
    return {"workdir": True, "python": None, "versions": {}}


_VERSIONS = """
import platform, sys
from importlib import metadata
print("python", platform.python_version())
for name in sys.argv[1:]:
    try: print(name, metadata.version(name))
    except metadata.PackageNotFoundError: print(name, "-")
"""


def _versions(
    executable: str, workdir: str, modules: List[str], env: Dict[bytes, bytes]
) -> Optional[Dict[str, Optional[str]]]:
    if not modules and os.path.isabs(executable):
        return {} if os.access(executable, os.X_OK) else None
    try:
        done = subprocess.run(
            [executable, "-c", _VERSIONS, *modules],
            cwd=workdir, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode != 0:
        return None
    pairs = [line.split(" ", 1) for line in done.stdout.decode("utf-8", "replace").splitlines()]
    return {
        pair[0]: None if pair[1] == "-" else pair[1]
        for pair in pairs
        if len(pair) == 2 and pair[0] in ("python", *modules)
    }


def write_mark(folder: str, name: str, text: str) -> Optional[str]:
    """Make the folder and a small file in it, for the other nodes to find. Returns the topmost folder made, if any."""
    made, above = None, folder
    while not os.path.isdir(above):
        made, above = above, os.path.dirname(above)
    try:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        remove_mark(folder, name, made)
        raise
    return made


def read_mark(folder: str, name: str) -> Optional[str]:
    """What the file says here, or None when it is not to be seen."""
    try:
        os.listdir(folder)  # a network file system looks again
        with open(os.path.join(folder, name)) as file:
            return file.read()
    except OSError:
        return None


def remove_mark(folder: str, name: str, made: Optional[str]) -> bool:
    """Remove the file again, and the empty folders that were made for it: from `folder` up to `made`."""
    if os.path.exists(os.path.join(folder, name)):
        os.unlink(os.path.join(folder, name))
    while made is not None and len(folder) >= len(made):
        if os.path.isdir(folder):
            os.rmdir(folder)
        folder = os.path.dirname(folder)
    return True


_QUESTIONS: Dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        pick_port, source_address, interface, python, write_mark, read_mark, remove_mark,
        probes.survey, probes.space, probes.clock, probes.listen, probes.unlisten, probes.dial,
        stock.code_missing, stock.code_store, stock.code_lay_out,
    )
}  # fmt: skip
