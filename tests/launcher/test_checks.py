import sys

import pytest

from distperf.version import __version__
from launcher import checks
from launcher.checks import MODULES, Check, Needs
from launcher.hostfile import Host

NEEDS = Needs(python=None, workdir="/w", training=True, modules=MODULES, shared_dir=None)
SCRIPT = Needs(python=None, workdir="/w", training=False, modules=MODULES, shared_dir=None)


def answer(python="/bin/py", workdir=True, **versions):
    return {"workdir": workdir, "python": python, "versions": {"python": "3.11.2", **versions}}


def has(torch="2.13.0", distperf=__version__):
    return answer(torch=torch, distperf=distperf)


def faults(found):
    return {(host, check.name): check for host, all_of in found.items() for check in all_of if not check.ok}


def test_failing_folds_hosts_with_the_same_fault():
    """One line a fault, with what to do; what is ok or only a warning is not told."""
    bad = Check("x", False, "no disk", "a disk", "buy one")
    found = {
        "n1": [bad],
        "n2": [Check("y", True, "fine", remedy="better"), bad],
        "n3": [Check("x", True, "fine")],
    }
    assert checks.failing(found) == ["n[1-2]: no disk: buy one"]


def test_candidates():
    """The hostfile's interpreter, else the recipe's, else this one's path and python3."""
    assert checks.candidates(Host("a", None, python="/h"), "/r") == ["/h"]
    assert checks.candidates(Host("a", None), "/r") == ["/r"]
    assert checks.candidates(Host("a", None), None) == [sys.executable, "python3"]


def test_interpreter():
    """A missing folder hides the interpreter; a missing interpreter names what was tried; version and path are told."""
    host = Host("a", None)
    (missing,) = checks.interpreter(host, NEEDS, answer(None, workdir=False), None)
    assert (missing.name, missing.ok) == ("workdir", False)
    assert "/w" in missing.found
    _, none = checks.interpreter(host, NEEDS, answer(None), None)
    assert (none.name, none.ok) == ("python", False)
    assert f"{sys.executable} nor python3" in none.found
    assert "launch.python" in none.remedy
    _, good = checks.interpreter(host, NEEDS, answer(), None)
    assert (good.ok, good.found, good.remedy) == (True, "/bin/py (3.11.2)", None)


def test_own_workdir_of_a_host():
    """workdir= in the hostfile goes before the recipe's."""
    (missing,) = checks.interpreter(
        Host("a", None, workdir="/mine"), NEEDS, answer(None, workdir=False), None
    )
    assert "/mine" in missing.found


def test_versions_of_the_bundled_runtime():
    """Both modules must be there, distperf as here, torch as on most nodes; each fault names interpreter and remedy."""
    found = checks.versions(
        NEEDS,
        {"a": has(), "b": has(), "c": has(torch="2.12.0"), "d": has(torch=None), "e": has(distperf="0.0.1")},
    )
    wrong = faults(found)
    assert set(wrong) == {("c", "torch"), ("d", "torch"), ("e", "distperf")}
    assert "2.12.0" in wrong["c", "torch"].found
    assert wrong["c", "torch"].wanted == "2.13.0"
    assert "/bin/py has no torch" in wrong["d", "torch"].found
    assert f"0.0.1, this is {__version__}" in wrong["e", "distperf"].found
    assert all(check.remedy for check in wrong.values())


def test_another_python_is_a_warning():
    """3.12 among 3.11 may work: a remedy without a fault; a patch release is nothing."""
    odd, patch = has(), has()
    odd["versions"]["python"], patch["versions"]["python"] = "3.12.1", "3.11.9"
    found = checks.versions(NEEDS, {"a": has(), "b": odd, "c": patch})
    remedies = {
        host: all_of[0].remedy for host, all_of in found.items() if all_of[0].name == "python_version"
    }
    assert faults(found) == {}
    assert [bool(remedies[host]) for host in "abc"] == [False, True, False]


def test_versions_for_a_script():
    """A script needs neither module; torch on some nodes only, or of two versions, is a fault all the same."""
    assert faults(checks.versions(SCRIPT, {"a": has(torch=None, distperf=None), "b": has(torch=None)})) == {}
    assert set(faults(checks.versions(SCRIPT, {"a": has(), "b": has(torch=None)}))) == {("b", "torch")}
    assert set(faults(checks.versions(SCRIPT, {"a": has(), "b": has(torch="1.0"), "c": has()}))) == {
        ("b", "torch")
    }


def test_versions_skip_nodes_without_an_interpreter():
    """What has no interpreter has no versions to compare."""
    assert set(checks.versions(NEEDS, {"a": has(), "b": answer(None)})) == {"a"}


@pytest.mark.parametrize(
    ("found", "alone", "ok"),
    [("192.0.2.7", False, True), ("127.0.0.1", True, True), ("127.0.0.1", False, False), ("::1", False, False),
     (None, False, False), ("203.0.113.9", False, True)],
)  # fmt: skip
def test_address(found, alone, ok):
    """Loopback will do for one node only; an address that no interface has is one translated on the way."""
    check = checks.address(found, {"eth0": ["192.0.2.7"], "lo": ["127.0.0.1"]}, alone)
    assert check.ok == ok
    assert ok == (check.remedy is None)
    assert ("translated" in check.found) == (found == "203.0.113.9")


def test_shared_folder():
    """The writer's own fault is told alone; else each node that does not read what was written is named."""
    refused = checks.shared_folder("/c", "a", "Permission denied", "t", {})
    assert set(faults({host: [check] for host, check in refused.items()})) == {("a", "checkpoint_dir")}
    assert "Permission denied" in refused["a"].found
    seen = checks.shared_folder("/c", "a", None, "t", {"b": "t", "c": None, "d": "old"})
    assert [seen[host].ok for host in "abcd"] == [True, True, False, False]
    assert "/c is not one folder" in seen["c"].found


def test_drives_for_offload():
    """A folder that is not there, or not writable, refuses the run; room is for the ranks to take."""
    fine = {"at": "/nvme", "free_bytes": 1 << 30, "total_bytes": 1 << 40, "error": None}
    assert checks.own_folder(checks.OFFLOAD, "/nvme", fine).ok
    missing = checks.own_folder(checks.OFFLOAD, "/nvme/run", fine)
    assert not missing.ok
    assert missing.found == "offload.path /nvme/run is no folder there"
    locked = checks.own_folder(checks.OFFLOAD, "/nvme", {**fine, "error": "Permission denied"})
    assert (locked.ok, locked.found) == (False, "cannot write to offload.path /nvme: Permission denied")
