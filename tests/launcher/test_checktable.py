from launcher.checking import HostReport, Report
from launcher.checks import Check
from launcher.checktable import as_json, as_text

GOOD = HostReport("n1", (Check("reach", True, "n1 as me"), Check("clock", True, "as here")))
SAME = HostReport("n2", (Check("reach", True, "n2 as me"), Check("clock", True, "as here")))
LATE = HostReport(
    "n3", (Check("reach", True, "n3 as me"), Check("clock", True, "5 s ahead", "none", "set it"))
)
FULL = HostReport("n4", (Check("reach", True, "n4 as me"), Check("disk", False, "full", "room", "free some")))
GONE = HostReport("n5", (Check("reach", False, "timed out", "an agent", "see that it is on"),))


def test_exit_codes():
    """0 with warnings, 4 with a fault, 3 where a host was not reached whatever else is wrong."""
    assert Report((GOOD, LATE)).exit_code == 0
    assert Report((GOOD, FULL)).exit_code == 4
    assert Report((GOOD, FULL, GONE)).exit_code == 3


def test_text():
    """Hosts that agree share a row; a fault has a row with its remedy under it; the last line is the verdict."""
    lines = as_text(Report((GOOD, SAME, LATE, FULL, GONE)))
    assert lines[0].split(maxsplit=3) == ["reach", "ok", "n[1-4]", "n1 as me; n2 as me; n3 as me; and 1 more"]
    assert lines[1].split(maxsplit=3) == ["reach", "FAIL", "n5", "timed out"]
    assert [line.strip() for line in lines[2:4]] == ["wanted: an agent", "do: see that it is on"]
    assert "warn" in next(line for line in lines if "5 s ahead" in line)
    assert lines[-1] == "2 of 5 hosts cannot take part: n[4-5]"
    assert as_text(Report((GOOD, SAME)))[-1] == "2 hosts: all ok"
    assert as_text(Report((GOOD, LATE)))[-1] == "2 hosts: all ok; see the warnings for n3"


def test_json():
    """The promised keys, for every check of every host."""
    value = as_json(Report((GOOD, FULL)))
    assert value["schema"] == 1
    assert [(host["host"], host["ok"]) for host in value["hosts"]] == [("n1", True), ("n4", False)]
    check = {"name": "disk", "ok": False, "found": "full", "wanted": "room", "remedy": "free some"}
    assert check in value["hosts"][1]["checks"]
