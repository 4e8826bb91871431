"""The command line as users meet it: a process, its exit code, its two streams, and what it leaves behind."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distperf.version import __version__
from launcher.agent import processes
from launcher.rundir import find_run

LIMIT_S = 60
SCRIPT = "SCRIPT"
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", os.environ["RANK"], flush=True)
time.sleep(60)
"""
SLEEPY = "import os, time\nprint('up', os.environ['RANK'], flush=True)\ntime.sleep(60)\n"


@pytest.fixture
def cli(tmp_path):
    """distperf in a folder of its own; afterwards no process of any run is left."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("DISTPERF_")}
    env["PYTHONPATH"] = os.getcwd()

    started = []

    def call(*args, start=False, **more):
        command = [sys.executable, "-m", "launcher", *map(str, args)]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        options = {"cwd": tmp_path, "text": True, **streams, **more, "env": {**env, **more.get("env", {})}}
        if start:
            started.append(subprocess.Popen(command, **options))
            return started[-1]
        return subprocess.run(command, timeout=LIMIT_S, **options)

    call.folder = tmp_path
    call.name = (
        f"cli{secrets.token_hex(4)}"  # of script and so of runs: their processes are told from others'
    )
    yield call
    for process in started:
        process.kill()
        process.communicate()
    assert run_processes(call.name) == []


def run_processes(name):
    """Processes that carry the token of a run of that name."""
    needle = f"DISTPERF_JOB_TOKEN={name}-".encode()
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if any(entry.startswith(needle) for entry in file.read().split(b"\0")):
                found.append(int(pid))
    return found


def write(cli, text):
    """The test's script; its name is the run's."""
    (cli.folder / f"{cli.name}.py").write_text(text)
    return f"{cli.name}.py"


def wait_for(process, text, stream="stdout"):
    """Read lines until one holds `text`."""
    seen = ""
    for line in getattr(process, stream):
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"{text!r} never came; it said:\n{seen}")


def ended(process):
    """Its exit code and the rest of both streams."""
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


# Nothing is started.


def test_version_and_help_are_quick(cli):
    """Neither imports what it does not need."""
    began = os.times().children_user
    assert cli("--version").stdout == f"distperf {__version__}\n"
    done = cli("launch", "--help")
    assert "--dry-run" in done.stdout
    assert os.times().children_user - began < 2.0  # of CPU: a busy machine does not count
    code = "import sys, launcher.cli.main; print(sorted({'torch', 'numpy', 'paramiko', 'rich', 'pydantic'} & set(sys.modules)))"  # noqa: E501
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["launch", "--nonsense"], "No such option"),
        (["nonsense"], "No such command"),
        (["launch"], "name a recipe"),
        (["launch", "missing.yaml"], "missing.yaml"),
        (["launch", "--script", SCRIPT, "--hosts", "missing"], "cannot read hostfile missing"),
        (["launch", "--script", SCRIPT, "--hosts", "."], "cannot read hostfile ."),
        (["launch", "--script", SCRIPT, "--hosts", "empty"], "empty"),
        (["launch", "--script", SCRIPT, "--include", "a"], "--hosts"),
        (["launch", "--script", SCRIPT, "--json"], "--dry-run"),
        (["launch", "--script", SCRIPT, "--nproc", "0"], "nproc"),
        (["launch", "--script", SCRIPT, "--set", "launch.env_secret=[NOT_SET_ANYWHERE]"], "NOT_SET_ANYWHERE"),
        (["launch", "--script", SCRIPT, "--nproc", "3", "--hosts", "two"], "nproc"),
        (["status"], "there is no run"),
        (["logs", "nobody"], "no run nobody"),
        (["stop", "nobody"], "no run nobody"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_usage_is_2_and_starts_nothing(cli, args, text):
    """A11 and its like: exit code 2, a sentence, no traceback, no run folder, no local run instead."""
    write(cli, "open('started', 'w')")
    (cli.folder / "empty").write_text("")
    (cli.folder / "two").write_text("localhost slots=2\n")
    done = cli(*(f"{cli.name}.py" if word is SCRIPT else word for word in args))
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not (cli.folder / "runs").exists()
    assert not (cli.folder / "started").exists()


def test_debug_shows_a_traceback(cli):
    """With --debug, and only then."""
    assert "Traceback" in cli("--debug", "status").stderr
    assert "Traceback" not in cli("status").stderr


def test_completion_script(cli):
    """The shell can ask for its completion script."""
    done = cli(env={"_DISTPERF_COMPLETE": "source_bash"})
    assert done.returncode == 0
    assert "COMPREPLY" in done.stdout


def test_dry_run_shows_no_secret(cli):
    """argv and environment of every rank, secrets masked; nothing is started or written."""
    write(cli, "open('started', 'w')")
    args = ["--set", "launch.env={COLOR: red}", "--set", "launch.env_secret=[API_KEY]"]
    for as_json in ([], ["--json"]):
        done = cli(
            "launch",
            "--script",
            f"{cli.name}.py",
            "--nproc",
            2,
            *args,
            "--dry-run",
            *as_json,
            env={"API_KEY": "hunter2"},
        )
        assert done.returncode == 0, done.stderr
        assert "hunter2" not in done.stdout + done.stderr
        assert "API_KEY" in done.stdout
        assert "red" in done.stdout
    plan = json.loads(done.stdout)
    assert plan["schema"] == 1
    assert [rank["env"]["RANK"] for rank in plan["ranks"]] == ["0", "1"]
    assert plan["ranks"][1]["env"]["API_KEY"] == "***"
    assert plan["ranks"][0]["argv"][-1] == f"{cli.name}.py"
    assert os.listdir(cli.folder) == [f"{cli.name}.py"]


# Runs.


@pytest.mark.slow
def test_a_run_from_beginning_to_end(cli):
    """Two ranks do their work: 0, logs kept to the byte, and status, ps and logs tell of it."""
    script = write(
        cli,
        "import os, sys\nsys.stdout.buffer.write(b'rank ' + os.environb[b'RANK'] + b' \\xff' + sys.argv[1].encode() + b'\\n')",  # noqa: E501
    )
    done = cli("launch", "--script", script, "--nproc", 2, "--", "--lr=1", errors="replace")
    assert done.returncode == 0, done.stderr
    assert "localhost 1 | rank 1 \ufffd--lr=1" in done.stdout
    assert "finished" in done.stderr
    run = find_run(None, cli.folder / "runs")
    assert run.log(1, 1).read_bytes() == b"rank 1 \xff--lr=1\n"

    status = json.loads(cli("status", "--once", "--json").stdout)
    assert status.keys() >= {
        "schema", "run", "dir", "state", "attempt", "step", "steps", "exit_code", "ranks", "first_failure"
    }  # fmt: skip
    assert (status["schema"], status["state"], status["exit_code"], status["first_failure"]) == (
        1,
        "finished",
        0,
        None,
    )
    assert (status["run"], status["dir"]) == (run.run_id, str(run.path))
    keys = {"rank", "local_rank", "host", "node_rank", "pid", "state", "step", "coordinates", "memory"}
    assert all(rank.keys() >= keys for rank in status["ranks"])
    assert status["ranks"][1]["coordinates"].keys() == {"pp", "dp_replicate", "dp_shard", "cp", "tp"}
    assert [row["run"] for row in json.loads(cli("ps", "--json").stdout)["runs"]] == [run.run_id]
    assert run.run_id in cli("ps").stdout
    assert "finished" in cli("status", run.path).stdout

    assert cli("logs", "--rank", "1", errors="replace").stdout == "localhost 1 | rank 1 \ufffd--lr=1\n"
    assert cli("logs", "--raw", "--rank", "0", text=False).stdout == b"rank 0 \xff--lr=1\n"
    assert cli("logs", "--grep", "rank 1", errors="replace").stdout.count("\n") == 1
    assert cli("logs", "-f", errors="replace").stdout.count("\n") == 2
    assert cli("logs", "--rank", "7").returncode == 2
    assert cli("logs", "--grep", "(").returncode == 2
    assert cli("stop").returncode == 0


@pytest.mark.slow
def test_a_failing_rank(cli):
    """1, and the report begins with who failed where and its last lines; FAILURE has all its keys."""
    script = write(
        cli, "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('no good')\ntime.sleep(60)"
    )
    done = cli(
        "launch",
        "--script",
        script,
        "--nproc",
        2,
        "--set",
        "launch.max_restarts=0",
        "--set",
        "launch.grace_s=1",
    )
    assert done.returncode == 1
    report = done.stderr[done.stderr.index("first failure") :].splitlines()
    assert "rank 1 on localhost" in report[0]
    assert "ValueError: no good" in "\n".join(report[:16])
    assert "Traceback (most recent call last)" in done.stderr  # the rank's own, quoted
    failure = json.loads(cli("status", "--json").stdout)["first_failure"]
    assert failure.keys() >= {
        "host", "rank", "cause", "exit_code", "signal", "message", "traceback", "log_tail", "followers"
    }  # fmt: skip
    assert (failure["rank"], failure["cause"], failure["exit_code"], failure["followers"]) == (
        1,
        "exit",
        1,
        [0],
    )


@pytest.mark.slow
def test_no_secret_is_written_anywhere(cli):
    """The rank has it; the run folder, whole, does not."""
    script = write(cli, "import os\nprint(len(os.environ['API_KEY']))")
    secret = "correct-horse-battery"
    done = cli(
        "launch",
        "--script",
        script,
        "--set",
        "launch.env_secret=[API_KEY]",
        "--nproc",
        1,
        env={"API_KEY": secret},
    )
    assert done.returncode == 0
    assert f"| {len(secret)}" in done.stdout
    files = [path for path in (cli.folder / "runs").rglob("*") if path.is_file()]
    assert len(files) >= 5
    assert not [path for path in files if secret.encode() in path.read_bytes()]


@pytest.mark.slow
def test_stop_from_another_process(cli):
    """`stop` ends the run in order and waits; the launch exits with 130."""
    process = cli("launch", "--script", write(cli, SLEEPY), "--nproc", 2, start=True)
    wait_for(process, "up 1")
    done = cli("stop")
    assert done.returncode == 0
    assert "has ended (stopped)" in done.stderr
    assert ended(process)[0] == 130
    assert json.loads(cli("status", "--json").stdout)["state"] == "stopped"


@pytest.mark.slow
def test_sigterm(cli):
    """SIGTERM ends the run in order: 143."""
    process = cli("launch", "--script", write(cli, SLEEPY), "--nproc", 1, start=True)
    wait_for(process, "up 0")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 143


@pytest.mark.slow
def test_ctrl_c_twice(cli):
    """A rank that ignores SIGTERM does not hold the user who presses Ctrl-C a second time."""
    process = cli("launch", "--script", write(cli, STUBBORN), "--nproc", 2, start=True)
    wait_for(process, "up")
    process.send_signal(signal.SIGINT)
    wait_for(process, "again to end them now", "stderr")
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130
    assert time.monotonic() - began < 5.0
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_killed_controller(cli):
    """SIGKILL of the launch: its ranks end by themselves, and `status` calls the run lost."""
    process = cli("launch", "--script", write(cli, SLEEPY), "--nproc", 2, start=True)
    wait_for(process, "up 1")
    process.kill()
    process.communicate(timeout=LIMIT_S)
    deadline = time.monotonic() + 10
    while run_processes(cli.name) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert run_processes(cli.name) == []
    assert json.loads(cli("status", "--json").stdout)["state"] == "lost"
    assert "dead" in cli("stop").stderr


@pytest.mark.slow
def test_restart(cli):
    """A rank that fails once is started again under the same run; both attempts' logs are kept."""
    script = write(
        cli,
        "import os\nprint('attempt', os.environ['DISTPERF_ATTEMPT'])\nraise SystemExit(os.environ['DISTPERF_ATTEMPT'] == '1')",  # noqa: E501
    )
    done = cli("launch", "--script", script, "--nproc", 1)
    assert done.returncode == 0
    assert "2 attempts" in done.stderr
    assert cli("logs", "--raw").stdout == "attempt 2\n"
    assert cli("logs", "--raw", "--attempt", 1).stdout == "attempt 1\n"
    assert cli("logs", "--attempt", 3).returncode == 2


@pytest.mark.slow
def test_stdin_is_left_alone(cli):
    """B23: in a shell loop that reads hosts, every iteration runs."""
    write(cli, "print('ran')")
    loop = f'printf "a\\nb\\n" | while read h; do {sys.executable} -m launcher launch --script {cli.name}.py --nproc 1; echo "did $h"; done'  # noqa: E501
    done = subprocess.run(
        ["sh", "-c", loop], cwd=cli.folder, env={**os.environ, "PYTHONPATH": os.getcwd()}, capture_output=True, text=True, timeout=LIMIT_S  # noqa: E501
    )  # fmt: skip
    assert "did a" in done.stdout
    assert "did b" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("redirect", ["", "2>&1"])
def test_a_reader_that_leaves(cli, redirect):
    """`| head -1`: the run goes on to its end and keeps its exit code, without a traceback."""
    write(
        cli,
        "import time\nfor n in range(50):\n    print('line', n, flush=True)\n    time.sleep(0.01)\nopen('whole', 'w')\nraise SystemExit(5)",  # noqa: E501
    )
    line = f"({sys.executable} -m launcher launch --script {cli.name}.py --nproc 1 --set launch.max_restarts=0 {redirect}; echo $? >code) | head -1"  # noqa: E501
    done = subprocess.run(
        ["sh", "-c", line], cwd=cli.folder, env={**os.environ, "PYTHONPATH": os.getcwd()}, capture_output=True, text=True, timeout=LIMIT_S  # noqa: E501
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert (cli.folder / "whole").exists()
    assert (cli.folder / "code").read_text() == "1\n"


@pytest.mark.slow
def test_an_ascii_terminal(cli):
    """What a rank writes cannot fail the launch on a terminal that knows no such letters."""
    script = write(cli, "import sys\nsys.stdout.buffer.write('日本 \\x1b[31m'.encode() + b'\\xff\\n')")
    done = cli("launch", "--script", script, "--nproc", 1, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "\\u65e5\\u672c" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.slow
def test_a_python_that_is_not_there(cli):
    """An interpreter that does not exist is refused before any rank starts: 4, with what to do."""
    write(cli, "")
    done = cli("launch", "--script", f"{cli.name}.py", "--nproc", 1, "--set", "launch.python=/nowhere/python")
    assert done.returncode == 4
    assert "/nowhere/python" in done.stderr
    assert not (cli.folder / "runs").exists()


@pytest.mark.slow
def test_an_unreachable_host_is_3(cli):
    """A port that nobody listens on: 3, the host named, nothing written."""
    (cli.folder / "hosts").write_text("127.0.0.1 slots=1 port=1\n")
    write(cli, "")
    done = cli("launch", "--script", f"{cli.name}.py", "--hosts", "hosts")
    assert done.returncode == 3
    assert "127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_tokens_are_found(cli):
    """The scan that all of the above rely on sees a process with such a token."""
    stray = subprocess.Popen(["sleep", "30"], env={"DISTPERF_JOB_TOKEN": f"{cli.name}-x"})
    try:
        assert run_processes(cli.name) == processes.with_token(f"{cli.name}-x") == [stray.pid]
    finally:
        stray.kill()
        stray.wait()


def test_limited_logs_are_the_end_of_what_was_written(cli):
    """launch.log_limit_bytes: both parts within the limit; `logs` shows them in order; the dry run knows the key."""
    script = write(
        cli,
        "import os, time\nfor n in range(50):\n    os.write(1, b'%07d\\n' % n * 10000)\n    time.sleep(0.02)",
    )
    done = cli("launch", "--script", script, "--quiet", "--set", "launch.log_limit_bytes=1048576")
    assert done.returncode == 0, done.stderr
    log = find_run(None, cli.folder / "runs").log(1, 0)
    shown = cli("logs", "--raw", "--rank", "0").stdout
    assert b"".join(b"%07d\n" % n * 10000 for n in range(50)).decode().endswith(shown)
    assert shown == Path(f"{log}.1").read_text() + log.read_text()
    assert 1 << 19 <= len(shown) <= 1 << 20
