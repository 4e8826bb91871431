"""The folder for checkpoints in memory: there for the run's ranks, and gone whatever ends the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from agents import LiveAgent

from launcher.agent import tier
from launcher.protocol import Exited, Idle
from launcher.transport.channel import Closed


def test_a_folder_is_its_runs_and_private(tmp_path):
    """It has the run's name and mode 0700, nobody else takes it for left over, and it goes with all that is in it."""
    kept = tier.Tier(str(tmp_path), "demo-1")
    assert Path(kept.folder).parent == tmp_path
    assert Path(kept.folder).name.startswith("distperf-memory-demo-1-")
    assert os.stat(kept.folder).st_mode & 0o777 == 0o700
    Path(kept.folder, "step-00000005").mkdir()
    tier.reclaim(str(tmp_path))
    assert tier.left(str(tmp_path)) == []
    kept.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_next_run_takes_back_what_a_killed_one_left(tmp_path):
    """Without an owner a folder goes when another run begins there; one with an owner, and foreign names, stay."""
    code = f"from launcher.agent.tier import Tier; import os; Tier({str(tmp_path)!r}, 'dead'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert [Path(folder).name[:21] for folder in tier.left(str(tmp_path))] == ["distperf-memory-dead-"]
    (tmp_path / "mine").mkdir()
    living = tier.Tier(str(tmp_path), "living")
    other = tier.Tier(str(tmp_path), "other")
    assert {Path(living.folder), Path(other.folder), tmp_path / "mine"} == set(tmp_path.iterdir())


def test_no_such_place_is_told_with_the_key(tmp_path):
    with pytest.raises(OSError, match=r"checkpoint\.memory\.dir /nowhere: No such file or directory"):
        tier.Tier("/nowhere", "demo")


KEEPS = "import os, pathlib, time; pathlib.Path(os.environ['DISTPERF_MEMORY'], 'mine').write_text('kept'); "


@pytest.mark.slow
def test_ranks_find_it_again_in_the_next_attempt(tmp_path):
    """Two attempts on one node have one folder, with what the first has kept; after Bye there is none."""
    with LiveAgent() as agent:
        agent.start(KEEPS, memory_dir=str(tmp_path))
        agent.wait(Idle)
        agent.start(
            "import os, pathlib; assert pathlib.Path(os.environ['DISTPERF_MEMORY'], 'mine').exists()",
            attempt=2,
            memory_dir=str(tmp_path),
        )
        assert [rank.code for rank in agent.to_idle()] == [0, 0]
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_it_is_gone_when_the_agent_is_killed(tmp_path):
    """SIGKILL of the agent: its guardian ends the ranks, and then removes their folder."""
    with LiveAgent() as agent:
        agent.start(KEEPS + "time.sleep(60)", memory_dir=str(tmp_path))
        deadline = time.monotonic() + 20
        while not list(tmp_path.glob("*/mine")) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert list(tmp_path.glob("*/mine"))
        os.kill(agent.facts["pid"], signal.SIGKILL)
        agent.wait(Closed)
        while list(tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert list(tmp_path.iterdir()) == []
        for folder in agent.spools():  # what a killed agent cannot remove
            subprocess.run(["rm", "-r", folder], check=True)


@pytest.mark.slow
def test_a_place_that_is_not_there_fails_the_rank(tmp_path):
    """The rank is told as not started, with the recipe's key."""
    with LiveAgent() as agent:
        agent.start("pass", memory_dir=str(tmp_path / "not-there"))
        told = agent.wait(Exited)
        assert "checkpoint.memory.dir" in told.error
        assert told.error.endswith("not-there: No such file or directory")
