"""Start a rank, find every process of a run, end them: by group and job token, never by name."""

import ctypes
import os
import shutil
import signal
import subprocess
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional

TOKEN_ENV = "DISTPERF_JOB_TOKEN"
REPORT_FD_ENV = "DISTPERF_REPORT_FD"
STACK_FILE_ENV = "DISTPERF_STACK_FILE"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, so that they can be reaped here."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """In a fresh child: SIGKILL this process when its parent ends; at once if it has ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def spawn(argv: List[str], env: Mapping[bytes, bytes], cwd: str, log_fd: int, kept_fd: int) -> int:
    """Start a process in its own session and group, output into its log. Raises OSError when it cannot be started.

    argv and env go to the kernel as the bytes they were: no shell, no re-encoding by this machine's locale.
    """
    parent = os.getpid()
    try:
        process = subprocess.Popen(
            [to_bytes(word) for word in argv],
            env=env,
            cwd=to_bytes(cwd),
            stdin=subprocess.DEVNULL,
            stdout=log_fd,
            stderr=log_fd,
            pass_fds=(kept_fd,),
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent),
        )
    except (subprocess.SubprocessError, ValueError) as error:  # the child's half failed; a NUL in a word
        raise OSError(str(error)) from None
    process.returncode = 0  # the agent waits for it itself
    return process.pid


def to_bytes(text: str) -> bytes:
    """The bytes that a text of the protocol stands for."""
    return text.encode("utf-8", "surrogateescape")


def rank_environment(base: Mapping[bytes, bytes], order: Dict[str, Any]) -> Dict[bytes, bytes]:
    """The node's own environment, less what another launcher may have left in it, plus what the order gives.

    order: setup (what launch.setup made of the node's own), env (set), defaults (set where the node has none), devices
    (physical devices that the hostfile names), slots (places chosen of the node's). Without `devices`, slots index what
    the node's own CUDA_VISIBLE_DEVICES leaves visible; where all places are taken and no mask is set, none is set here
    either.
    """
    env = after_setup(base, order.get("setup"))
    for name, value in order.get("defaults", {}).items():
        env.setdefault(to_bytes(name), to_bytes(value))
    visible = visible_devices(
        env.get(b"CUDA_VISIBLE_DEVICES"), order.get("slots") or [], order.get("devices")
    )
    if visible is not None:
        env[b"CUDA_VISIBLE_DEVICES"] = visible
    env.update((to_bytes(name), to_bytes(value)) for name, value in order["env"].items())
    return env


def after_setup(base: Mapping[bytes, bytes], setup: Optional[Dict[str, Any]]) -> Dict[bytes, bytes]:
    """The node's own environment as launch.setup leaves it. setup: env, unset (launcher.setup.Changes)."""
    env = {k: v for k, v in base.items() if not is_of_a_rank(k)}
    if setup is not None:
        env.update((to_bytes(name), to_bytes(value)) for name, value in setup["env"].items())
        for name in setup["unset"]:
            env.pop(to_bytes(name), None)
    return env


def is_of_a_rank(name: bytes) -> bool:
    """Whether a variable says which rank of which run this is."""
    return name in _OTHERS or name.startswith(_OTHERS_BEGIN)


def shared(env: Mapping[bytes, bytes]) -> Dict[bytes, bytes]:
    """What is left of a rank's environment without the variables that make it this rank; the token stays."""
    return {k: v for k, v in env.items() if not is_of_a_rank(k) or k == TOKEN_ENV.encode()}


def visible_devices(mask: Optional[bytes], slots: List[int], devices: Optional[List[int]]) -> Optional[bytes]:
    """CUDA_VISIBLE_DEVICES for the ranks of a node, or None to leave it as it is."""
    if devices is not None:
        return b",".join(b"%d" % device for device in devices)
    if mask is not None:
        places = [place for place in mask.split(b",") if place]
        return b",".join(places[slot] for slot in slots) if slots and max(slots) < len(places) else None
    return None if slots == list(range(len(slots))) else b",".join(b"%d" % slot for slot in slots)


# The last six: an srun's word on its own task, which is an agent.
_OTHERS_BEGIN = (b"TORCHELASTIC_", b"DISTPERF_", b"SLURM_STEP", b"SLURM_CPU_BIND", b"SLURM_MEM_BIND", b"SLURM_NTASKS",
                 b"SRUN_", b"PMI")  # fmt: skip
_OTHERS = {
    b"SLURM_PROCID", b"SLURM_LOCALID", b"SLURM_NODEID", b"SLURM_GTIDS", b"SLURM_TASK_PID", b"SLURM_NPROCS",
    b"SLURM_TASKS_PER_NODE",
    b"RANK", b"LOCAL_RANK", b"WORLD_SIZE", b"LOCAL_WORLD_SIZE", b"GROUP_RANK", b"GROUP_WORLD_SIZE",
    b"ROLE_RANK", b"ROLE_WORLD_SIZE", b"ROLE_NAME", b"MASTER_ADDR", b"MASTER_PORT",
}  # fmt: skip


def with_token(token: str, spare: Iterable[int] = ()) -> List[int]:
    """Pids of living processes that carry the run's token in their environment, as far as we may look."""
    needle = (TOKEN_ENV + "=" + token).encode()
    skip = set(spare) | {os.getpid()}
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in skip:
            try:
                with open("/proc/%s/environ" % name, "rb") as file:
                    if needle in file.read().split(b"\0"):
                        found.append(int(name))
            except OSError:  # ended meanwhile, or another user's
                continue
    return found


def send(pids: Iterable[int], number: int) -> None:
    """Signal each process; one that has ended meanwhile is fine."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def kill_all(token: str, tries: int = 50) -> None:
    """SIGKILL whatever carries the token, until none is left: one may fork while we look, or take a moment to go."""
    for _ in range(tries):
        left = with_token(token)
        if not left:
            return
        send(left, signal.SIGKILL)
        time.sleep(0.01)


def group(pid: int) -> int:
    """The process group that a process is in; 0 when it has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def send_group(leader: int, number: int) -> None:
    """Signal the process group of a rank."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return


def start_guardian(*close: int) -> int:
    """Fork a process that outlives a SIGKILLed agent long enough to end its run. Returns the write end of its pipe.

    Ranks die with the agent (parent-death signal), their own children do not. The guardian waits for the pipe's
    end of file, which no way of dying can avoid, and ends what carries the token. Tell it the token by writing it
    as a line, the newest counts; a line that begins with a slash is a folder, which it removes as well. An agent that
    closes the pipe after writing "bye" needs nothing from it. (The pipe trick is Horovod's.)
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid:
        os.close(read_end)
        return write_end
    os.setsid()
    os.close(write_end)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2, *close):  # hold nothing of the agent's: an SSH session ends with its last descriptor
        os.dup2(null, fd)
    try:
        _guard(read_end)
    finally:
        os._exit(0)


def _guard(read_end: int) -> None:
    with open(read_end, "rb") as pipe:
        said = os.fsdecode(pipe.read()).splitlines()
    if not said or said[-1] == "bye":
        return
    kill_all([line for line in said if not line.startswith("/")][-1])
    for folder in said:
        if folder.startswith("/"):
            shutil.rmtree(folder, ignore_errors=True)
