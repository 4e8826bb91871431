"""Ranks of a real agent: what reaches them, how they end, what is left."""

import itertools
import json
import os
import shutil
import signal
import sys
import time

import pytest
from agents import LiveAgent, alive

from launcher import protocol
from launcher.agent.ranks import meaning
from launcher.protocol import Exited, Heartbeat, Idle, Record, Started
from launcher.transport.channel import Closed

pytestmark = pytest.mark.slow

ECHO = """
import os, sys
for name in ("cmdline", "environ"):
    data = open("/proc/self/" + name, "rb").read()
    sys.stdout.buffer.write(b"%08d" % len(data) + data)
"""
VALUES = {
    "PARENS": "64(x2)", "SPACE": "a b", "QUOTES": 'a"b it\'s', "SHELL": "$HOME `id` ; * \\ | & < > # ! ~", "UNICODE": "日本",  # noqa: E501
    "EMPTY": "", "LINES": "a\nb\r\n\tc", "BIG": "x" * 100_000, "BYTES": b"\xff\xfe\x80".decode("utf-8", "surrogateescape"),  # noqa: E501
}  # fmt: skip


def raw(text):
    return text.encode("utf-8", "surrogateescape")


@pytest.mark.parametrize("lang", ["C", "C.UTF-8"])
def test_argv_and_env_byte_for_byte(lang, monkeypatch):
    """B14: what the kernel shows of the rank is what was ordered, under any locale of the agent."""
    monkeypatch.setenv("LC_ALL", lang)
    with LiveAgent() as agent:
        words = [*(value for name, value in VALUES.items() if name != "BIG"), "y" * 100_000]
        agent.start_argv([sys.executable, "-c", ECHO, *words], env=VALUES)
        (exited,) = agent.to_idle()
        assert exited.code == 0
        log = agent.log()
    size = int(log[:8])
    cmdline, environ = log[8 : 8 + size], log[16 + size :]
    assert cmdline.split(b"\0")[3:-1] == [raw(word) for word in words]
    found = dict(entry.split(b"=", 1) for entry in environ.split(b"\0") if entry)
    assert {name: found[raw(name)] for name in VALUES} == {name: raw(value) for name, value in VALUES.items()}


@pytest.mark.parametrize(
    ("argv", "cwd", "text"),
    [
        (["/nowhere/python"], "/", "cannot start /nowhere/python: not found"),
        (["no-such-command"], "/", "cannot start no-such-command: not found"),
        ([sys.executable], "/nowhere", "cannot start in /nowhere: no such folder on this node"),
        (["/usr"], "/", "cannot start /usr: not allowed"),
        ([sys.executable, "x" * 3_000_000], "/", "too large"),
        ([sys.executable, "a\0b"], "/", "null byte"),
    ],
    ids=["missing", "not on PATH", "no cwd", "a folder", "too big", "nul"],
)
def test_what_cannot_be_started(argv, cwd, text):
    """A rank that cannot be started has exited with a sentence that says why; the agent lives on."""
    with LiveAgent() as agent:
        agent.start_argv(argv, [sys.executable, "-c", ""], cwd=cwd)
        first, *others = agent.to_idle()
        assert (first.code, first.signal) == (None, None)
        assert text in first.error
        assert [other.code for other in others] == ([0] if cwd == "/" else [None])
        agent.start("print('alive')", attempt=2)
        assert agent.wait(Exited).code == 0


def test_exit_codes_and_signals():
    """Codes as numbers, signals by name, each rank's last words with it."""
    with LiveAgent() as agent:
        agent.start(
            "print('a'); raise SystemExit(0)",
            "print('b'); raise SystemExit(7)",
            "import os; print('c', flush=True); os.kill(os.getpid(), 9)",
            "import os; os.abort()",
            "import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 2)",
        )
        ended = {exited.rank: (exited.code, exited.signal) for exited in agent.to_idle()}
        tails = {exited.rank: exited.log_tail for exited in agent.got(Exited)}
    assert ended == {
        0: (0, None),
        1: (7, None),
        2: (None, "SIGKILL"),
        3: (None, "SIGABRT"),
        4: (None, "SIG36"),
    }
    assert (tails[1], tails[2]) == ("b", "c")


def test_meaning_of_a_status():
    """Wait statuses as code or signal name."""
    assert meaning(3 << 8) == (3, None)
    assert meaning(9) == (None, "SIGKILL")


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
COUNTING = """
import signal, sys, time
seen = []
signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
print('up', flush=True)
end = time.monotonic() + 60
while not seen and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.2)
print('got', len(seen), flush=True)
"""


def test_sigterm_comes_once():
    """A rank that is stopped gets one SIGTERM: a second one may mean "at once" to a program."""
    with LiveAgent() as agent:
        agent.start(COUNTING)
        agent.wait_log(b"up")
        agent.channel.send(protocol.Stop(1, 20.0))
        agent.to_idle()
        assert agent.log() == b"up\ngot 1\n"


def test_sigkill_after_the_grace():
    """A rank that ignores SIGTERM is killed when its grace is over, not before and not much later."""
    with LiveAgent() as agent:
        agent.start(STUBBORN)
        agent.wait_log(b"up")
        began = time.monotonic()
        agent.channel.send(protocol.Stop(1, 0.3))
        (exited,) = agent.to_idle()
        assert 0.3 <= time.monotonic() - began < 3.0
        assert exited.signal == "SIGKILL"


def test_a_second_stop_shortens_the_grace():
    """Ctrl-C twice: what had minutes left has none."""
    with LiveAgent() as agent:
        agent.start(STUBBORN)
        agent.wait_log(b"up")
        agent.channel.send(protocol.Stop(1, 60.0))
        agent.channel.send(protocol.Stop(1, 0.0))
        began = time.monotonic()
        assert agent.to_idle()[0].signal == "SIGKILL"
        assert time.monotonic() - began < 3.0


CHILDREN = f"""
import subprocess, sys, time
for _ in range(2):
    subprocess.Popen([sys.executable, "-c", {STUBBORN!r}])
time.sleep(0.3)
%s
"""


def test_children_that_outlive_their_rank():
    """C01: a rank with two children that share its output and ignore SIGTERM raises; nothing is left, Idle comes."""
    with LiveAgent(grace_s=0.3) as agent:
        agent.start(CHILDREN % "raise RuntimeError('lost')")
        (exited,) = agent.to_idle()
        assert exited.code == 1
        assert "RuntimeError: lost" in exited.log_tail
        assert agent.left() == []


def test_children_in_a_group_of_their_own_are_stopped():
    """setsid does not hide a process from the end of its run."""
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], start_new_session=True)"
    with LiveAgent(grace_s=0.2) as agent:
        agent.start(code)
        agent.to_idle()
        assert agent.left() == []


def test_lease():
    """A controller that says nothing for lease_s is gone: the ranks end, the agent leaves, nothing stays."""
    with LiveAgent(lease_s=0.5, grace_s=0.3) as agent:
        agent.start(STUBBORN)
        agent.wait(Started)
        agent.wait(Closed, 10.0)
        assert agent.gone_within(1.0)
        assert not alive(agent.pids())


def test_pings_renew_the_lease():
    """While the controller speaks the ranks live, beyond the lease."""
    with LiveAgent(lease_s=0.6) as agent:
        agent.start("import time; time.sleep(1.5)")
        while not any(isinstance(m, Exited) for _, m in agent.seen):
            agent.channel.send(protocol.Ping())
            agent.wait((Heartbeat, Exited))
        assert agent.got(Exited)[0].code == 0


def test_end_of_file():
    """A controller that hangs up is gone: SIGTERM, the grace, SIGKILL, and the agent leaves."""
    with LiveAgent(grace_s=0.3) as agent:
        agent.start(STUBBORN, "import time; time.sleep(60)")
        agent.wait_log(b"up")
        agent.channel.close()
        assert agent.gone_within(5.0)
        deadline = time.monotonic() + 5
        while alive([agent.facts["pid"]]) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not alive([agent.facts["pid"]])
        agent.wait(Closed)


def test_sigkill_of_the_agent():
    """C15: ranks vanish with their agent, their children with the guardian, within 2 s; the channel tells."""
    agent = LiveAgent()
    agent.start(CHILDREN % "time.sleep(60)", STUBBORN)
    agent.wait_log(b"up", rank=0)
    agent.wait_log(b"up", rank=1)
    os.kill(agent.facts["pid"], signal.SIGKILL)
    assert agent.gone_within(2.0)
    assert not alive(agent.pids())
    assert "-9" in agent.wait(Closed).why
    for folder in agent.spools():  # what a killed agent cannot remove
        __import__("shutil").rmtree(folder)


def test_the_next_agent_ends_what_an_earlier_one_left():
    """A process with the run's token that no agent knows of is killed when the run's agent comes (again)."""
    import subprocess

    with LiveAgent() as agent:
        stray = subprocess.Popen(["sleep", "60"], env={"DISTPERF_JOB_TOKEN": agent.token})
        agent.channel.send(protocol.Configure(protocol.VERSION, agent.run_id, agent.token, 25.0, 1.0, 0.2))
        assert stray.wait(timeout=10) == -signal.SIGKILL


def test_bye_with_ranks():
    """An agent that is sent away ends its ranks first."""
    with LiveAgent(grace_s=0.2) as agent:
        agent.start(STUBBORN)
        agent.wait_log(b"up")
        agent.channel.send(protocol.Bye())
        agent.wait(Closed, 10.0)
        assert agent.got(Exited)[0].signal == "SIGKILL"
        assert agent.got(Idle)


FLOOD = """
import sys
block = b"".join(b"%07d\\n" % n for n in range(125000))
for _ in range(50):
    sys.stdout.buffer.write(block)
"""


def test_50_mb_in_order_while_the_agent_beats():
    """A rank that writes 50 MB at once: all bytes come, in order by offset; heartbeats come in time all the while."""
    with LiveAgent(heartbeat_s=0.2) as agent:
        agent.start(FLOOD)
        agent.to_idle()
        block = b"".join(b"%07d\n" % n for n in range(125000))
        assert b"".join(p.data for p in agent.got(protocol.LogBytes)) == block * 50
        offset = 0
        for piece in agent.got(protocol.LogBytes):
            assert piece.offset == offset
            offset += len(piece.data)
        beats = [t for t, message in agent.seen if isinstance(message, Heartbeat)]
        assert max((b - a for a, b in itertools.pairwise(beats)), default=0.0) < 1.5


def test_a_writer_ahead_of_us_can_be_stopped():
    """A rank that has written more than the link takes keeps the agent from nothing: it beats, and it obeys."""
    code = "import sys, time\nfor _ in range(200): sys.stdout.buffer.write(b'x' * 1_000_000)\ntime.sleep(60)"
    with LiveAgent(heartbeat_s=0.1) as agent:
        agent.start(code)
        for _ in range(2):
            agent.wait(Heartbeat, 5.0)
        agent.channel.send(protocol.Stop(1, 0.0))
        assert agent.wait(Exited, 10.0).signal == "SIGKILL"
        agent.wait(Idle)


REPORTS = """
import os
fd = int(os.environ["DISTPERF_REPORT_FD"])
def put(data):
    while data:
        data = data[os.write(fd, data):]
put(b'{"kind": "phase", "phase": "train"}\\n')
put(b'garbage\\n[1]\\n{}\\n{"kind": 5}\\n\\xff\\xfe\\n' + b"[" * 100000 + b"\\n")
put(b'{"kind": "progress", "step": "x"}\\n{"kind": "progress", "step": 4}\\n')
put(b'{"kind": "x", "pad": "' + b"p" * 3000000 + b'"}\\n')
put(b'{"kind": "done"}\\n{"kind": "partial"')
"""


def test_records():
    """Records come before the exit; garbage, a line beyond all measure and one cut by death are dropped."""
    with LiveAgent() as agent:
        agent.start(REPORTS)
        agent.to_idle()
        records = [message.record for message in agent.got(Record)]
        assert records == [{"kind": "phase", "phase": "train"}, {"kind": "done"}]
        assert [beat.steps for beat in agent.got(Heartbeat) if beat.steps] == [{"0": 4}]
        kinds = [type(message) for _, message in agent.seen if isinstance(message, (Record, Exited))]
        assert kinds == [Record, Record, Exited]


def test_a_closed_report_pipe_costs_nothing():
    """A rank that closes its pipe goes on, and the agent does not spin on the end of file."""
    code = "import os, time; os.close(int(os.environ['DISTPERF_REPORT_FD'])); time.sleep(1)"
    with LiveAgent() as agent:
        agent.start(code)
        agent.wait(Started)
        with open(f"/proc/{agent.facts['pid']}/stat") as file:
            before = sum(map(int, file.read().split()[13:15]))
        agent.wait(Exited)
        with open(f"/proc/{agent.facts['pid']}/stat") as file:
            used = sum(map(int, file.read().split()[13:15])) - before
        assert used / os.sysconf("SC_CLK_TCK") < 0.4


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (
            {
                "message": {
                    "message": "ValueError: no",
                    "extraInfo": {"py_callstack": "Traceback", "timestamp": "1"},
                }
            },
            {"type": "ValueError", "message": "no", "traceback": "Traceback"},
        ),
        ({"message": "plain", "timestamp": 1}, {"type": "plain", "message": "", "traceback": None}),
        ("not json", None),
        ([], None),
    ],
)
def test_error_file(content, error):
    """torchelastic's error file is read as the rank's own word; a broken one is none."""
    text = content if isinstance(content, str) else json.dumps(content)
    with LiveAgent() as agent:
        agent.start(
            f"import os; open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write({text!r}); raise SystemExit(1)"
        )
        agent.to_idle()
        records = [message.record for message in agent.got(Record)]
        assert records == ([] if error is None else [{"kind": "error", **error}])


def test_own_error_record_stands_before_the_file():
    """A rank that reported its error is not quoted twice."""
    code = """
import os
os.write(int(os.environ["DISTPERF_REPORT_FD"]), b'{"kind": "error", "type": "A", "message": "a"}\\n')
open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write('{"message": "B: b"}')
raise SystemExit(1)
"""
    with LiveAgent() as agent:
        agent.start(code)
        agent.to_idle()
        assert [message.record["type"] for message in agent.got(Record)] == ["A"]


def test_attempts_follow_each_other():
    """A second attempt starts afresh: logs from offset 0, ranks by its number."""
    with LiveAgent() as agent:
        for attempt in (1, 2):
            agent.seen.clear()
            agent.start(f"print('attempt {attempt}')", attempt=attempt)
            agent.to_idle()
            assert agent.log() == f"attempt {attempt}\n".encode()
            assert {message.attempt for message in agent.got((Exited, Idle, Started))} == {attempt}


def test_a_stop_in_a_hurry_leaves_the_backlog_here():
    """Nobody reads the link, so logs pile up: Idle comes at once with what is missing, which stays in the folder."""
    with LiveAgent() as agent:
        agent.hold_logs.clear()
        agent.start(
            "import os, time\nfor n in range(200): os.write(1, b'%07d\\n' % n * 12800)\nprint('end'); time.sleep(99)"
        )
        while (
            not agent.spools()
            or os.path.getsize(log := f"{agent.spools()[0]}/attempt-1-rank-00000.log") < 20_480_004
        ):
            time.sleep(0.02)
        agent.channel.send(protocol.Stop(1, 0.0, True))
        time.sleep(0.2)
        told = time.monotonic()
        agent.hold_logs.set()
        idle = agent.wait(Idle)
        assert time.monotonic() - told < 2
        sent = agent.log()
        assert idle.unsent == {"0": 20_480_004 - len(sent)}
        assert len(sent) < 2_000_000
        agent.channel.send(protocol.Bye())
        agent.wait(Closed)
        assert idle.folder == os.path.dirname(log)
        with open(log, "rb") as file:
            assert file.read(len(sent)) == sent
        assert os.listdir(idle.folder) == [os.path.basename(log)]
        shutil.rmtree(idle.folder)
