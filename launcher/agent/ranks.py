"""The ranks of one attempt on this node: processes, report pipes, logs."""

import errno
import json
import os
import signal
from typing import Any, Dict, Iterator, List, Optional, Tuple

from launcher.agent import processes
from launcher.agent.memory import MemoryWatch
from launcher.agent.nursery import Nursery
from launcher.agent.spool import RankLog, Spool
from launcher.agent.stacks import Looks, ask
from launcher.agent.tier import ENV as TIER_ENV
from launcher.agent.tier import Tier

MAX_RECORD_BYTES = 1 << 20


class Rank:
    """One rank: its process, the read end of its report pipe, and its log."""

    def __init__(self, pid: int, report_fd: int, log: RankLog) -> None:
        self.pid = pid
        self.report_fd = report_fd
        self.log = log
        self.ended = False
        self.silent = False  # the report pipe has no writer any more
        self.told_error = False
        self._partial = b""

    def records(self) -> Iterator[Dict[str, Any]]:
        """Records that have arrived. What is not a JSON object on one line is dropped: it came from user code."""
        while True:
            try:
                data = os.read(self.report_fd, 65536)
            except OSError:  # nothing there now
                return
            if not data:
                self.silent = True
                return
            *lines, self._partial = (self._partial + data).split(b"\n")
            if len(self._partial) > MAX_RECORD_BYTES:
                self._partial = b""
            for line in lines:
                try:
                    record = json.loads(line.decode("utf-8", "replace"))
                except (ValueError, RecursionError):
                    continue
                if isinstance(record, dict) and isinstance(record.get("kind"), str):
                    yield record


class Ranks:
    """All ranks that this agent has started in the current attempt."""

    def __init__(self, attempt: int, token: str) -> None:
        self.attempt = attempt
        self.all: Dict[int, Rank] = {}
        self._token = token
        self._memory = MemoryWatch()

    def start(
        self,
        order: Dict[str, Any],
        spool: Spool,
        nursery: Optional[Nursery] = None,
        tier: Optional[Tier] = None,
    ) -> Rank:
        """Start one rank, from the nursery where it fits. Raises OSError; nothing is left behind then."""
        if tier is not None:
            order["env"][TIER_ENV] = tier.folder
        log = spool.open(self.attempt, order["rank"], order.get("log_limit_bytes"))
        order["env"]["TORCHELASTIC_ERROR_FILE"] = log.error_file
        order["env"][processes.STACK_FILE_ENV] = log.stack_file
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        try:
            pid = self._new_process(order, log.write_fd, write_end, nursery)
        except OSError:
            os.close(read_end)
            log.close()
            raise
        finally:
            os.close(write_end)
        rank = self.all[order["rank"]] = Rank(pid, read_end, log)
        self._memory.add(pid)
        return rank

    def _new_process(
        self, order: Dict[str, Any], log_fd: int, report_fd: int, nursery: Optional[Nursery]
    ) -> int:
        env = processes.rank_environment(os.environb, order)
        if nursery is not None and nursery.fits(order, env):
            try:
                return nursery.fork(order["argv"], env, log_fd, report_fd)
            except OSError as error:
                nursery.give_up(str(error))
        env[processes.REPORT_FD_ENV.encode()] = b"%d" % report_fd
        return processes.spawn(order["argv"], env, order["cwd"], log_fd, report_fd)

    def reap(self) -> Iterator[Tuple[int, Optional[int], Optional[str]]]:
        """(rank, exit code, signal name) of each rank that has ended since the last call; adopted orphans vanish."""
        by_pid = {rank.pid: number for number, rank in self.all.items()}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in by_pid:
                rank = self.all[by_pid[pid]]
                rank.ended = True
                code, name = meaning(status)
                yield by_pid[pid], code, name

    def why_killed(self, number: int, name: Optional[str]) -> Optional[str]:
        """How memory was the kernel's reason, where a rank died of the signal SIGKILL and the kernel says so."""
        return self._memory.verdict(self.all[number].pid) if name == "SIGKILL" else None

    def running(self) -> List[Rank]:
        """Ranks whose process has not ended."""
        return [rank for rank in self.all.values() if not rank.ended]

    def look(self, now: float) -> Looks:
        """Begin to find out what the running ranks are doing."""
        running = {number: rank for number, rank in self.all.items() if not rank.ended}
        return Looks({number: (rank.pid, rank.log.stack_file) for number, rank in running.items()}, now)

    def ask(self, numbers: List[int], request: str) -> List[int]:
        """Ask something of these ranks while they train; those that take no requests."""
        return [n for n in numbers if n not in self.all or not ask(self.all[n].log.stack_file, request)]

    def left(self, spare: Tuple[int, ...] = ()) -> List[int]:
        """Pids of every process of the attempt that is still here, ranks' own children included."""
        return processes.with_token(self._token, spare)

    def signal(self, number: int, spare: Tuple[int, ...] = ()) -> None:
        """Signal every process of the attempt."""
        leaders = [rank.pid for rank in self.running()]
        others = [pid for pid in self.left(spare) if processes.group(pid) not in leaders]
        for leader in leaders:
            processes.send_group(leader, number)
            if number == signal.SIGTERM:  # one that is stopped hears it only when it goes on
                processes.send_group(leader, signal.SIGCONT)
        processes.send(others, number)  # once each: a second SIGTERM can mean "at once" to a program

    def trim_logs(self) -> Optional[str]:
        """Keep logs within their limit; why that cannot be done here, once."""
        for rank in self.all.values():
            try:
                rank.log.trim()
            except OSError as error:
                return "launch.log_limit_bytes has no effect on this node's disk: %s" % error.strerror
        return None

    def unsent(self) -> Dict[str, int]:
        """Bytes of each log that have not been handed on, where there are any."""
        left = {str(number): rank.log.unsent() for number, rank in self.all.items()}
        return {number: size for number, size in left.items() if size}

    def forget(self, keep_unsent: bool = False) -> None:
        """Close pipes and drop logs; all ranks have ended and their logs are sent, or shall stay."""
        for rank in self.all.values():
            os.close(rank.report_fd)
            rank.log.close(keep_unsent)
        self.all = {}
        self._memory.close()


def meaning(status: int) -> Tuple[Optional[int], Optional[str]]:
    """(exit code, None) or (None, signal name) of a wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return None, signal.Signals(number).name
        except ValueError:  # a real-time signal
            return None, "SIG%d" % number
    return os.WEXITSTATUS(status), None


def why_not_started(order: Dict[str, Any], error: OSError) -> str:
    """A sentence a person can act on for a rank whose process could not be made."""
    what = {
        errno.ENOENT: "not found",
        errno.EACCES: "not allowed",
        errno.E2BIG: "arguments and environment too large",
    }
    reason = what.get(error.errno or 0, error.strerror or str(error))
    if not os.path.isdir(processes.to_bytes(order["cwd"])):
        return "cannot start in %s: no such folder on this node" % order["cwd"]
    return "cannot start %s: %s" % (order["argv"][0], reason)
