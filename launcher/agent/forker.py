"""The nursery's program: a process that has imported torch forks the ranks of its node, so that none has to.

The agent writes this file into the node's spool folder and runs it under the ranks' own interpreter, in their folder
and with every variable that they share: `python -u nursery.py FD`. Over the socket FD come frames: a first one
{argv, modules} that is answered by {ready} or {error} after the imports, then one {argv, env} for each rank, along
with the descriptors of its log and report pipe, that is answered by {pid} or {error}. End of file: nothing more is
wanted.

A rank is forked twice. When the process in between has ended, the agent, a subreaper, is the rank's parent, as of one
that it has exec'ed itself: it gets the exit status from the kernel, and takes the rank along when it dies. So a rank
owes nothing to the nursery once it is there, and no exit status has to be relayed.

What a program can tell from `python -u PROGRAM`: /proc/self/cmdline and /proc/self/environ are the nursery's,
modules of ours and torch are in sys.modules already, the ranks of a node share one hash seed, and the end of a process
group is another's function (see `wait_for_gloo`).
"""

import array
import atexit
import builtins
import ctypes
import faulthandler
import functools
import gc
import importlib
import importlib.machinery
import io
import json
import os
import runpy
import signal
import socket
import struct
import sys
import time
from types import ModuleType
from typing import Any, Dict, List, Optional, Sequence, Tuple

GLOO_WAIT_S = 5.0  # they take microseconds, but may have to wait for a core
_PR_SET_PDEATHSIG = 1
_GLOO_THREAD = "pt_gloo_runloop"
_SIZE = struct.Struct(">I")
_THREADS_ENV = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_OPENBLAS_NAMES = ("openblas_set_num_threads", "openblas_set_num_threads64_",
                   "scipy_openblas_set_num_threads", "scipy_openblas_set_num_threads64_")  # fmt: skip


def send(link: socket.socket, message: Dict[str, Any], fds: Sequence[int] = ()) -> None:
    """One frame, with copies of descriptors. Raises OSError."""
    payload = json.dumps(message).encode("ascii")
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    link.sendmsg([_SIZE.pack(len(payload))], rights)
    link.sendall(payload)


def receive(link: socket.socket) -> Tuple[Optional[Dict[str, Any]], List[int]]:
    """The next frame and its descriptors; None at end of file. Raises OSError."""
    fds = array.array("i")
    head, rights, _, _ = link.recvmsg(_SIZE.size, socket.CMSG_SPACE(2 * fds.itemsize))
    for level, kind, data in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    head += _exactly(link, _SIZE.size - len(head)) if head else b""
    payload = _exactly(link, _SIZE.unpack(head)[0]) if len(head) == _SIZE.size else b""
    return (json.loads(payload.decode("ascii")) if payload else None), list(fds)


def _exactly(link: socket.socket, size: int) -> bytes:
    """`size` bytes, or nothing when the other side has gone in between."""
    data = bytearray()
    while len(data) < size:
        piece = link.recv(size - len(data))
        if not piece:
            return b""
        data += piece
    return bytes(data)


# Before the fork.


def preload(argv: List[str], modules: List[str]) -> Dict[str, Any]:
    """Import what the ranks would; the answer says whether this process can be forked then.

    An import that fails ends this process with its traceback in the nursery's log.
    """
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = _first_path(argv[2:])
    for name in modules:
        importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:  # a thread is not there after a fork, but a lock that it held is
        return {"error": "importing %s starts threads (%d run)" % (", ".join(modules), threads)}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return {"error": "importing %s opens a CUDA context" % ", ".join(modules)}
    gc.collect()
    gc.freeze()  # a collection in a rank must not touch, and so copy, the pages that all share
    return {"ready": True}


def _first_path(words: List[str]) -> str:
    """What python puts at the front of sys.path."""
    return os.getcwd() if words[0] == "-m" else os.path.dirname(os.path.realpath(words[0]))


def serve(link: socket.socket) -> Tuple[Dict[str, Any], List[int]]:
    """Fork a rank for every order. Returns in a rank only, with its order and descriptors."""
    agent = os.getppid()
    while True:
        order, fds = receive(link)
        if order is None:
            os._exit(0)
        answer = fork_rank(agent)
        if answer is None:
            return order, fds
        for fd in fds:
            os.close(fd)
        send(link, answer)


def fork_rank(agent: int) -> Optional[Dict[str, Any]]:
    """What to answer to the agent; None in the rank."""
    hold, told = os.pipe(), os.pipe()
    try:
        between = os.fork()
    except OSError as error:
        between, answer = 0, {"error": str(error)}
    else:
        answer = {"error": "the forked process ended at once"}
        if between == 0:
            os.close(hold[1])
            _become_child_of(agent, hold[0], told[1])
            for fd in (hold[0], *told):
                os.close(fd)
            return None
        os.waitpid(between, 0)
    os.close(hold[1])  # go on: from here on the agent is the rank's parent
    os.close(told[1])
    with open(told[0], "rb") as pipe:
        pid = pipe.read()
    os.close(hold[0])
    return {"pid": int(pid)} if pid else answer


def _become_child_of(agent: int, hold: int, told: int) -> None:
    """Fork once more; returns in the grandchild, when it is the agent's and in a session of its own."""
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    os.read(hold, 1)
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(1)
    os.write(told, b"%d" % os.getpid())


# In the rank.


def take_place(env: Dict[str, str], log_fd: int, report_fd: int, changed: Dict[bytes, bytes]) -> None:
    """Make this process what an exec'ed one would be: descriptors, environment, seeds, threads of the BLAS.

    changed: variables that the imports have set; the program's own import of the same modules would set them.
    """
    for fd in (1, 2):
        os.dup2(log_fd, fd)
    os.close(log_fd)
    os.set_inheritable(report_fd, True)
    wanted = {_to_bytes(name): _to_bytes(value) for name, value in env.items()}
    wanted[b"DISTPERF_REPORT_FD"] = b"%d" % report_fd
    wanted.update(changed)
    for name in set(os.environb) - set(wanted):
        del os.environb[name]
    for name, value in wanted.items():
        os.environb[name] = value
    _answer_with_stacks(env.get("DISTPERF_STACK_FILE"))
    _reseed()
    _let_openblas_have_its_threads()
    _end_groups_in_peace()


def _answer_with_stacks(path: Optional[str]) -> None:
    """SIGUSR2 writes the main thread's stack where the agent looks for it; without an agent, into the log."""
    fd = 2 if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(signal.SIGUSR2, file=fd, all_threads=False)


def _to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _reseed() -> None:
    """What draws a seed at import draws another; `random` does so by itself after a fork."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _let_openblas_have_its_threads() -> None:
    """The nursery loads it with one thread, since it would start the others at once."""
    given = [int(os.environ[name]) for name in _THREADS_ENV if os.environ.get(name, "").isdigit()]
    count = next((number for number in given if number > 0), len(os.sched_getaffinity(0)))
    if count == 1:
        return
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[5].rstrip("\n") for line in maps if "openblas" in line}
    for path in paths:
        library = ctypes.CDLL(path)
        for name in _OPENBLAS_NAMES:
            if hasattr(library, name):
                getattr(library, name)(count)


def _end_groups_in_peace() -> None:
    """Neither a group's end nor the interpreter's comes while a thread of gloo's may ask for the interpreter's lock."""
    atexit.register(wait_for_gloo)  # the first, so the last to be called
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    destroy = distributed.destroy_process_group

    @functools.wraps(destroy)
    def wait_and_destroy(*args: Any, **kwargs: Any) -> None:
        wait_for_gloo()
        destroy(*args, **kwargs)

    for module in (distributed, distributed.distributed_c10d):
        setattr(module, "destroy_process_group", wait_and_destroy)  # noqa: B010  # a type checker knows no such module


def wait_for_gloo() -> None:
    """Return when no thread of gloo's is still at work on a collective that the program has seen the end of.

    Such a thread asks for the interpreter's lock, to let go of the tensors. Torch 2.13 joins it while holding that lock
    when the group's last owner goes (DDP's reducer, say), and a thread that asks while the interpreter ends aborts the
    process: a script that ends right after a collective would hang, or die by SIGABRT, as it does under torchrun.

    Our sleep frees the lock, which wakes whoever waits for it: only a thread with nothing to do sleeps all through.
    """
    before, deadline = None, time.monotonic() + GLOO_WAIT_S
    while time.monotonic() < deadline:
        now = _sleeps_of_gloo()
        if None not in now.values() and now == before:
            return
        before = now
        time.sleep(0.001)


def _sleeps_of_gloo() -> Dict[str, Optional[int]]:
    """How often each thread that carries out gloo's collectives has gone to sleep; None for one that is awake."""
    sleeps = {}
    for thread in os.listdir("/proc/self/task"):
        try:
            with open("/proc/self/task/%s/status" % thread) as file:
                status = dict(line.split(":", 1) for line in file)
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        if status["Name"].strip() == _GLOO_THREAD:
            asleep = status["State"].split()[0] == "S"
            sleeps[thread] = int(status["voluntary_ctxt_switches"]) if asleep else None
    return sleeps


def run(argv: List[str]) -> None:
    """What the interpreter does with its command line: `-m MODULE ARGS...` or `SCRIPT ARGS...`."""
    argv = [os.fsdecode(_to_bytes(word)) for word in argv]
    sys.orig_argv = argv  # type: ignore[attr-defined, unused-ignore]  # since Python 3.10
    words = argv[2:]
    main = sys.modules["__main__"] = ModuleType("__main__")
    if words[0] == "-m":
        sys.modules.pop(words[1], None)  # imported for what it imports; now it is run
        sys.argv[:] = ["-m", *words[2:]]
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]  # the very function behind `python -m`
        return
    sys.argv[:] = words
    path = os.path.abspath(words[0])
    main.__file__ = path
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    main.__dict__.update(__builtins__=builtins, __cached__=None)
    if sys.version_info < (3, 14):  # from there on they are computed when asked for
        main.__annotations__ = {}
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def run_to_the_end(argv: List[str]) -> None:
    """Run, and leave everything after the program's last line to the interpreter, which knows best how to end."""
    try:
        run(argv)
    except (
        Exception
    ) as error:  # the rank's boundary: show it as the interpreter would, without our own frames
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


def main() -> List[str]:
    """Serve; returns in a rank only, made ready, with its command line."""
    link = socket.socket(fileno=int(sys.argv[1]))
    before = dict(os.environb)
    first, _ = receive(link)
    if first is None:
        os._exit(0)
    answer = preload(first["argv"], first["modules"])
    changed = {name: value for name, value in os.environb.items() if before.get(name) != value}
    send(link, answer)
    order, (log_fd, report_fd) = serve(link)
    link.close()
    take_place(order["env"], log_fd, report_fd, changed)
    return list(order["argv"])


if __name__ == "__main__":
    run_to_the_end(main())
