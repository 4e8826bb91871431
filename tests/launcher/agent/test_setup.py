"""launch.setup on a node: real bash, run by a real agent."""

from __future__ import annotations

import os
import secrets
import signal
import time

import pytest
from agents import LiveAgent

from launcher import protocol
from launcher.transport.channel import Closed

pytestmark = pytest.mark.slow


def setup(agent, *lines, env=None, limit_s=20.0, cwd="/"):
    return agent.ask("setup", token=agent.token, lines=list(lines), env=env or {}, cwd=cwd, limit_s=limit_s)


def test_what_is_exported_comes_back_byte_for_byte():
    """New, changed and removed variables; newlines, quotes and bytes that are no UTF-8; not the shell's own."""
    given = {"GIVEN": "1", "CHANGED": "old", "GONE": "x", "A_SECRET": "pst"}
    with LiveAgent() as agent:
        value = setup(
            agent, "export NL=$'x\\ny' ODD=\"it's \\$HOME\"", "export BYTES=$'\\xff' CHANGED=$CHANGED-new",
            "unset GONE; hidden=1; cd /tmp", "if true; then\n  export BLOCK=yes\nfi", env=given,
        ).value  # fmt: skip
    assert value["env"] == {
        "NL": "x\ny", "ODD": "it's $HOME", "BYTES": "\udcff", "CHANGED": "old-new", "BLOCK": "yes",
    }  # fmt: skip
    assert (value["unset"], value["status"], value["line"], value["python"]) == (["GONE"], 0, 4, None)


def test_the_line_that_failed_is_counted():
    """Its number, its code and the end of what was printed."""
    with LiveAgent() as agent:
        value = setup(agent, "true", "echo out; echo err >&2; (exit 7)", "echo never").value
    assert (value["line"], os.WEXITSTATUS(value["status"]), value["output"]) == (2, 7, "out\nerr")
    assert value["env"] is None


def test_input_is_empty_and_noise_is_bounded():
    """A line that reads finds the end of input; ten megabytes of output are ten megabytes nobody waits for."""
    with LiveAgent() as agent:
        value = setup(
            agent, "cat; read line || true", "head -c 10000000 /dev/zero | tr '\\0' n", "export A=1"
        ).value
    assert value["env"] == {"A": "1"}
    assert len(value["output"]) <= 8192


def test_time_is_limited_and_the_agent_is_heard_meanwhile():
    """What is not done in time is ended with all that it has started; the heartbeats go on."""
    with LiveAgent(heartbeat_s=0.1, lease_s=0.5) as agent:
        began = time.monotonic()
        value = setup(agent, "sleep 100 & setsid sleep 100", limit_s=1.5).value
        assert 1.4 < time.monotonic() - began < 5
        assert (value["status"], value["line"]) == ("late", 1)
        assert len(agent.got(protocol.Heartbeat)) >= 5
        assert agent.left() == []


def test_nothing_stays_in_the_background():
    """A line may not leave a daemon behind, in a session of its own or not; nor may one that is cut short by Bye."""
    with LiveAgent() as agent:
        assert setup(agent, "sleep 100 & setsid sleep 100 & disown -a").value["status"] == 0
        assert agent.left() == []
        agent.channel.send(
            protocol.Ask(2, "setup", {"token": agent.token, "lines": ["setsid sleep 100 & sleep 100"], "env": {},
                                      "cwd": "/", "limit_s": 20.0})
        )  # fmt: skip
        while len(agent.left()) < 3:
            time.sleep(0.01)


def test_a_killed_agent_takes_the_lines_along():
    """Its guardian ends what the parent-death signal does not reach."""
    with LiveAgent() as agent:
        agent.token = f"setup-{secrets.token_hex(4)}"
        agent.channel.send(
            protocol.Ask(1, "setup", {"token": agent.token, "lines": ["setsid sleep 100 & sleep 100"], "env": {},
                                      "cwd": "/", "limit_s": 20.0})
        )  # fmt: skip
        while len(agent.left()) < 3:
            time.sleep(0.01)
        os.kill(agent.facts["pid"], signal.SIGKILL)
        assert agent.gone_within(5)
        agent.wait(Closed)


@pytest.mark.parametrize(("cwd", "said"), [("/nowhere", "no such folder"), ("/", None)])
def test_where_it_cannot_run(cwd, said):
    """A workdir that is not there is said, not guessed at."""
    with LiveAgent() as agent:
        answer = setup(agent, "true", cwd=cwd)
    assert (said in answer.error) if said else (answer.error is None)


def test_an_activated_environment_brings_its_python(tmp_path):
    """The python3 that the lines put first on PATH, as `source venv/bin/activate` does."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to("/usr/bin/env")
    with LiveAgent() as agent:
        value = setup(agent, f"export PATH={tmp_path}/bin:$PATH").value
        assert value["python"] == f"{tmp_path}/bin/python3"
        assert setup(agent, f"export PATH=$PATH:{tmp_path}/bin").value["python"] is None
