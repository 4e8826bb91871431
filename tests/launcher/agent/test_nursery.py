"""Ranks that are forked from a nursery are what exec'ed ones would be."""

import json
import os
import signal
import sys
import time

import pytest
from agents import LiveAgent, alive

from launcher import protocol
from launcher.agent.nursery import likeness, matching
from launcher.plan import IMPORTS_TORCH, USES_DYNAMO
from launcher.protocol import Exited, Idle, Remark, Started
from launcher.transport.channel import Closed

LIGHT = {
    "modules": {"json": ""},
    "wait": True,
}  # what a nursery imports does not matter here: torch would cost seconds


class WarmAgent(LiveAgent):
    """An agent whose ranks are scripts, forked unless said otherwise."""

    def __init__(self, folder, warm=LIGHT, **more):
        super().__init__(**more)
        self.folder, self.warm = folder, warm

    def start_script(self, code, *args, ranks=1, attempt=1, env=None, words=("-u",), each=None):
        (self.folder / "script.py").write_text(code)
        own = {**(env or {}), "DISTPERF_JOB_TOKEN": self.token}
        orders = [
            {"rank": n, "local_rank": n, "argv": [sys.executable, *words, "script.py", *args], "cwd": str(self.folder),
             "env": {**own, "RANK": str(n), **(each[n] if each else {})}}
            for n in range(ranks)
        ]  # fmt: skip
        self.channel.send(protocol.Start(attempt, orders, self.warm))

    def output(self, code, *args, **more):
        """What one rank wrote, and how it ended."""
        self.seen.clear()
        self.start_script(code, *args, **more)
        (exited,) = self.to_idle()
        return self.log().decode(), (exited.code, exited.signal)


@pytest.fixture
def agents(tmp_path):
    """A warm and a cold agent in the same folder."""
    with WarmAgent(tmp_path) as warm, WarmAgent(tmp_path, warm=None) as cold:
        yield warm, cold


FORKED = "nursery.py' in open('/proc/self/cmdline').read()"

SELF = """
import ctypes, json, os, signal, sys
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
own = {"TORCHELASTIC_ERROR_FILE", "DISTPERF_JOB_TOKEN", "DISTPERF_REPORT_FD", "DISTPERF_STACK_FILE"}
env = {k: v for k, v in os.environb.items() if k.decode() not in own}
assert all(libc.getenv(k) == v for k, v in os.environb.items())
assert libc.getenv(b"OPENBLAS_NUM_THREADS") is None
main = sys.modules["__main__"]
fds = [fd for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd)]
fds = [fd for fd in fds if not os.readlink("/proc/self/fd/" + fd).endswith(".stacks")]
print(json.dumps({
    "env": {repr(k): repr(v) for k, v in sorted(env.items())},
    "argv": sys.argv, "orig": sys.orig_argv, "cwd": os.getcwd(), "path": sys.path, "executable": sys.executable,
    "main": {k: repr(v) for k, v in sorted(vars(main).items()) if k.startswith("__") and k != "__loader__"},
    "flags": repr(sys.flags), "same": vars(main) is globals(), "fds": len(fds), "stdin": sys.stdin.read(),
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()], "wakeup": signal.set_wakeup_fd(-1),
    "signals": [str(signal.getsignal(n)) for n in range(1, 32)],
    "out": [sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stdout.write_through],
}))
"""  # fmt: skip
VALUES = {"QUOTES": 'a"b it\'s', "UNICODE": "日本", "EMPTY": "", "LINES": "a\nb\r\n\tc", "BIG": "x" * 100_000,
          "BYTES": b"\xff\xfe\x80".decode("utf-8", "surrogateescape")}  # fmt: skip


@pytest.mark.slow
def test_a_forked_rank_is_what_an_execed_one_is(agents):
    """Environment (os.environ and getenv) byte for byte, argv, cwd, sys.path, __main__, streams, signals, session."""
    seen = [json.loads(agent.output(SELF, "--lr", "x y", VALUES["BYTES"], env=VALUES)[0]) for agent in agents]
    assert seen[0] == seen[1]
    assert [agent.output(f"print('{FORKED})", env=VALUES)[0] for agent in agents] == ["True\n", "False\n"]


ENDS = {
    "pass": (0, None),
    "import sys; sys.exit(3)": (3, None),
    "import sys; sys.exit('why')": (1, None),
    "import sys; sys.exit(None)": (0, None),
    "def f():\n    raise ValueError('no')\nf()": (1, None),
    "raise ValueError('outer') from KeyError('inner')": (1, None),
    "a = (": (1, None),
    "import os; os._exit(7)": (7, None),
    "import os; os.kill(os.getpid(), 9)": (None, "SIGKILL"),
    "import ctypes; ctypes.string_at(0)": (None, "SIGSEGV"),
    "raise KeyboardInterrupt": (None, "SIGINT"),
    "import atexit, threading, time\natexit.register(print, 'atexit')\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()": (0, None),
    "import os; f = open('left', 'w'); f.write('x')": (0, None),
    "print(open('left').read())\nimport sys\nfor n in range(3): print(n); print('e', n, file=sys.stderr)": (0, None),
    "import sys; sys.excepthook = lambda *a: print('hook', a[0]); 1 / 0": (1, None),
}  # fmt: skip


@pytest.mark.slow
def test_ends_and_last_words(agents):
    """Exit codes, signals, tracebacks, atexit, threads, files left open, order of output: all as after an exec."""
    for code, end in ENDS.items():
        warm, cold = (agent.output(code) for agent in agents)
        assert warm[1] == cold[1] == end, code
        if code != "raise KeyboardInterrupt":  # shows a frame of ours, too
            assert warm[0] == cold[0], code


PROCESSES = """
import multiprocessing, os, subprocess, sys
def double(n):
    return 2 * n
class Thing:
    n = 5
def give(queue):
    queue.put(Thing())
if __name__ == "__main__":
    import pickle
    assert pickle.loads(pickle.dumps(Thing())).n == 5
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            assert pool.map(double, [1, 2]) == [2, 4]
        queue = context.Queue()
        child = context.Process(target=give, args=(queue,))
        child.start()
        assert queue.get().n == 5
        child.join()
    print(subprocess.check_output([sys.executable, "-c", "import os; print(os.environ['RANK'])"], text=True))
"""


@pytest.mark.slow
def test_processes_of_a_forked_rank(tmp_path):
    """multiprocessing works by every method, pickling __main__ too, and children see the rank's environment."""
    with WarmAgent(tmp_path) as agent:
        assert agent.output(PROCESSES) == ("0\n\n", (0, None))


@pytest.mark.slow
def test_modules_run_as_main(agents):
    """`-m MODULE` is found in the rank's folder, and run as __main__ with its spec, though imported before."""
    code = "import sys; print(__name__, __spec__.name, sys.argv, sys.path[0], 'script' in sys.modules); 1 / 0"
    for agent in agents:
        agent.warm = agent.warm and {"modules": {"script": ""}, "wait": True}
        (agent.folder / "script.py").write_text(f"if __name__ == '__main__': {code}")
        agent.start_argv([sys.executable, "-u", "-m", "script", "x"], cwd=str(agent.folder), warm=agent.warm)
        agent.to_idle()
    assert agents[0].log() == agents[1].log()
    assert b"__main__ script" in agents[0].log()


@pytest.mark.slow
def test_attempts_share_a_nursery_and_leave_nothing(tmp_path):
    """The second attempt's ranks come from the same nursery; between attempts it is no leftover of the first."""
    code = "import os; print(open('/proc/self/cmdline').read().split(chr(0))[2])"
    with WarmAgent(tmp_path) as agent:
        words = [agent.output(code, attempt=attempt)[0] for attempt in (1, 2, 3)]
        assert len(set(words)) == 1
        assert "nursery.py" in words[0]
        assert len(agent.left()) == 1  # itself, until the agent leaves


@pytest.mark.slow
def test_sigkill_of_the_agent_takes_all(tmp_path):
    """Parent-death signals reach ranks that were forked twice: nothing is left 2 s after the agent."""
    agent = WarmAgent(tmp_path)
    agent.start_script("print('up'); import time; time.sleep(60)", ranks=2)
    agent.wait_log(b"up", rank=1)
    os.kill(agent.facts["pid"], signal.SIGKILL)
    assert agent.gone_within(2.0)
    assert not alive(agent.pids())
    agent.wait(Closed)
    for folder in agent.spools():  # what a killed agent cannot remove
        __import__("shutil").rmtree(folder)


@pytest.mark.slow
def test_a_killed_nursery_costs_no_rank(tmp_path):
    """Ranks do not need it any more once they run; it is told, and the next attempt has a new one."""
    with WarmAgent(tmp_path) as agent:
        agent.start_script("print('up'); import time; time.sleep(1); print('done')")
        agent.wait_log(b"up")
        (nursery,) = set(agent.left()) - set(agent.pids())
        os.kill(nursery, signal.SIGKILL)
        assert "has ended" in agent.wait(Remark).text
        (exited,) = agent.to_idle()
        assert (exited.code, agent.log()) == (0, b"up\ndone\n")
        assert agent.output(f"print('{FORKED})", attempt=2)[0] == "True\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "env", "why"),
    [
        ({"no_such_module": ""}, {}, "No module named 'no_such_module'"),
        ({"starts_a_thread": ""}, {}, "starts threads (2 run)"),
        ({"json": ""}, {"PYTHONHOME": "/nowhere"}, ""),
    ],
    ids=["import", "thread", "python"],
)
def test_what_a_nursery_cannot_do_is_done_without(tmp_path, modules, env, why):
    """An import that fails or starts a thread: said once, ranks are exec'ed, in later attempts too."""
    code = "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
    (tmp_path / "starts_a_thread.py").write_text(code)
    with WarmAgent(tmp_path, warm={"modules": modules, "wait": True}) as agent:
        for attempt in (1, 2):
            agent.start_script(f"print('{FORKED})", attempt=attempt, env=env)
            agent.wait(Idle)
        assert [exited.code for exited in agent.got(Exited)] == [1 if env else 0] * 2
        (remark,) = agent.got(Remark)
        assert "ranks are started directly" in remark.text
        assert why in remark.text


@pytest.mark.slow
def test_ranks_that_differ_are_execed(tmp_path):
    """A rank whose environment differs in more than rank variables is exec'ed; the others are forked."""
    code = f"import os; print('{FORKED}, os.environ['OMP_NUM_THREADS'])"
    each = [{"OMP_NUM_THREADS": n, "MASTER_PORT": n} for n in ("1", "2", "1")]
    with WarmAgent(tmp_path) as agent:
        agent.start_script(code, ranks=3, each=each)
        agent.to_idle()
        assert [agent.log(n) for n in range(3)] == [b"True 1\n", b"False 2\n", b"True 1\n"]


@pytest.mark.slow
def test_stop_while_the_nursery_imports(tmp_path):
    """Ranks that wait are not started after a stop; Idle comes at once, and nothing is left."""
    (tmp_path / "long.py").write_text("import time; time.sleep(60)")
    with WarmAgent(tmp_path, warm={"modules": {"long": ""}, "wait": True}) as agent:
        agent.start_script("pass", ranks=2)
        agent.channel.send(protocol.Stop(1, 5.0))
        began = time.monotonic()
        agent.wait(Idle)
        assert time.monotonic() - began < 3.0
        assert not agent.got((Started, Exited))


@pytest.mark.slow
def test_stacks_of_a_forked_rank(tmp_path):
    """SIGUSR2 writes every thread's stack where the agent finds it, for any script, and the rank goes on."""
    with WarmAgent(tmp_path) as agent:
        agent.start_script("import time\ndef here():\n    print('up')\n    time.sleep(2)\nhere()")
        agent.wait_log(b"up")
        agent.channel.send(protocol.TakeStacks(1))
        assert "in here" in agent.wait(protocol.StacksTaken).looks["0"]["stack"]
        assert agent.to_idle()[0].code == 0


SCRIPTS = {
    "import torch": True, "import os, torch": True, "from torch import nn": True, "x = 1\nimport torch\n": True,
    "    import torch.distributed as dist": True, "import torchvision": False, "# import torch": False,
    "import os  # not torch": False, "print('import torch')": False, "import mytorch": False,
}  # fmt: skip


@pytest.mark.parametrize("text", SCRIPTS)
def test_which_scripts_import_torch(text):
    """A line that imports torch itself; not a comment, a longer name, or a word elsewhere in the line."""
    assert bool(matching({"torch": IMPORTS_TORCH}, text.encode())) == SCRIPTS[text]


def test_modules_by_what_a_script_uses():
    """torch._dynamo comes with optimizers and DDP only, and nothing without torch."""
    modules = {"torch": IMPORTS_TORCH, "torch._dynamo": USES_DYNAMO}
    assert matching(modules, b"import torch\nprint(1)") == ["torch"]
    assert matching(modules, b"import torch\ntorch.optim.SGD([])") == ["torch", "torch._dynamo"]
    assert matching(modules, b"import re\nFSDP") == []


def test_likeness():
    """Rank variables and arguments may differ; program, folder, interpreter and everything else may not."""
    order = {"argv": ["python", "-u", "x.py", "a"], "cwd": "/"}
    env = {
        b"A": b"1",
        b"RANK": b"0",
        b"MASTER_PORT": b"1",
        b"DISTPERF_ATTEMPT": b"1",
        b"TORCHELASTIC_RUN_ID": b"r",
    }
    same = likeness(order, env)
    assert same == likeness({**order, "argv": ["python", "-u", "x.py", "b"]}, {**env, b"RANK": b"1"})
    assert same != likeness({**order, "argv": ["python", "-u", "y.py", "a"]}, env)
    assert same != likeness({**order, "cwd": "/tmp"}, env)
    assert same != likeness(order, {**env, b"A": b"2"})
    assert same != likeness(order, {**env, b"DISTPERF_JOB_TOKEN": b"t"})
