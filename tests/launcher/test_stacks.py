import pytest

from launcher import stacks
from launcher.stacks import Place, fold, groups, held_up_by, main_thread, place
from launcher.state import Rank

TORCH = "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
TEXT = f"""\
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 9 in wait
  File "/home/me/side.py", line 3 in beat

Current thread 0x00007f02 (most recent call first):
  File "{TORCH}", line 3252 in all_reduce
  File "/home/me/train.py", line 40 in step
  File "/home/me/train.py", line 80 in <module>
  File "<frozen runpy>", line 88 in _run_code
  File "/tmp/distperf-x-1/nursery.py", line 221 in run
"""
WAITS = place({"state": "S", "stack": TEXT, "collectives": [{"name": "all_reduce", "number": 17}]})
WORKS = Place("in /home/me/train.py:30 load", ("/home/me/train.py:30 load",))


def ranks(*steps):
    return tuple(Rank(n, n, "a", 0, state="running", step=step) for n, step in enumerate(steps))


def test_main_thread():
    """Faulthandler writes the oldest thread last; what every rank is started by says nothing."""
    assert [name for _, _, name in main_thread(TEXT)] == ["all_reduce", "step", "<module>"]


def test_the_newest_of_several_stacks():
    """A rank that was asked twice has two in its file, and the second is where it is."""
    one = 'Stack (most recent call first):\n  File "/t.py", line 3 in load\n'
    assert main_thread(one + one.replace("load", "step")) == [("/t.py", "3", "step")]


def test_place():
    """The innermost line of the user's own, the collective, and why there is no stack where there is none."""
    assert (WAITS.words, WAITS.collective) == ("in /home/me/train.py:40 step", "all_reduce #17")
    assert WAITS.waits
    assert not WORKS.waits
    assert place({"state": "T", "stack": TEXT}).words.startswith("stopped by a signal (SIGSTOP")
    assert place({"state": "S", "note": "no handler"}).words == "no handler"
    assert place({}).words == "no stack"


def test_equal_places_are_folded():
    """However many ranks wait in one line, it stands there once; the largest group first."""
    found = dict.fromkeys(range(8), WAITS) | {3: WORKS}
    assert [numbers for numbers, _ in fold(found)] == [[0, 1, 2, 4, 5, 6, 7], [3]]
    assert [(g["ranks"], g["collective"]) for g in groups(found)] == [
        ("0-2,4-7", "all_reduce #17"),
        ("3", None),
    ]


STOPPED = Place(stacks.STOPPED)
EARLIER = Place(WAITS.words, WAITS.frames, "all_gather #16", 16)
BLAMES = {
    "stopped": (ranks(5, 5, 5), [WAITS, WAITS, STOPPED], 2),
    "stopped, a step ahead": (ranks(4, 5), [WAITS, STOPPED], 1),
    "behind": (ranks(5, 4, 5), [WORKS, WAITS, WORKS], 1),
    "not waiting": (ranks(5, 5), [WAITS, WORKS], 1),
    "in an earlier collective": (ranks(5, 5, 5, 5), [WAITS, WAITS, EARLIER, EARLIER], 2),
    "the odd one": (ranks(5, 5, 5), [WORKS, Place("in b"), WORKS], 1),
    "nothing known": (ranks(0, 0), [stacks.UNKNOWN, stacks.UNKNOWN], 0),
}


@pytest.mark.parametrize("case", BLAMES)
def test_held_up_by(case):
    """Who the others wait for."""
    there, found, blamed = BLAMES[case]
    assert held_up_by(there, dict(enumerate(found)), script=False).rank == blamed


def test_a_script_that_reports_on_one_rank():
    """Ranks that report no steps are not behind, and the one that does is not ahead."""
    assert held_up_by(ranks(5, 0), {0: WAITS, 1: WORKS}, script=True).rank == 1
    assert held_up_by(ranks(5, 0), {0: WORKS, 1: WAITS}, script=True).rank == 0
    assert held_up_by(ranks(5, 4, 0), {0: WAITS, 1: WAITS, 2: WORKS}, script=True).rank == 1
