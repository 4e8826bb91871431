import pytest

from launcher.hostfile import Host
from launcher.plan import TRAINING, Program, place, warm

SCRIPT = ("train.py",)


def planned(args=SCRIPT, *, setting="auto", ranks=2, max_restarts=3):
    (node,) = place((Host("a", tuple(range(ranks))),), lambda rank: {}).nodes
    return warm(Program(args, "run", "token", "/", {}, setting), node, max_restarts)


@pytest.mark.parametrize("args", [SCRIPT, TRAINING])
@pytest.mark.parametrize("ranks", [1, 8])
def test_false_is_off(args, ranks):
    """warm_start: false never forks."""
    assert planned(args, setting=False, ranks=ranks) is None


def test_auto_forks_where_it_pays():
    """Several ranks wait for the imports; one starts at once, and has them done for a restart, if there can be one."""
    assert planned()["wait"]
    assert not planned(ranks=1)["wait"]
    assert planned(ranks=1, max_restarts=0) is None


def test_true_asks_nothing_of_the_script():
    """warm_start: true: a single rank is forked too, and torch needs no mention; auto wants an import of it."""
    assert planned(setting=True, ranks=1, max_restarts=0)["wait"]
    assert planned(setting=True)["modules"]["torch"] == ""
    assert planned()["modules"]["torch"] != ""


def test_training_imports_itself():
    """The bundled runtime's modules, whatever a file says."""
    assert set(planned(TRAINING)["modules"].values()) == {""}
    assert "distperf.train" in planned(TRAINING)["modules"]
