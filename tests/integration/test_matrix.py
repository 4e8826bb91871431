"""Every row of the fault matrix (docs/reliability.md): cause, outcome, nothing left, nothing lost."""

from __future__ import annotations

import os

import pytest
from integration.faults import CGROUP, ROWS, Place, Row, out_of_memory

pytestmark = pytest.mark.slow
NOTICED_WITHIN_S = 15.0
LAB_HOSTS = 3  # one is a spare


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path) -> Place:
    row: Row = request.node.callspec.params["row"]
    if row.happen is out_of_memory and not os.access(CGROUP / "memory.oom_control", os.W_OK):
        pytest.skip("needs root and a cgroup v1 memory controller")
    if not row.lab:
        return Place(tmp_path)
    lab = request.getfixturevalue("lab")
    folder = lab.dir / "shared" / f"row-{ROWS.index(row)}"
    folder.mkdir()
    return Place(folder, lab)


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=[pytest.mark.lab] if row.lab else []) for row in ROWS]
)
def test_row(row: Row, place: Place):
    """The cause is named, the run goes on or ends with the right code, no process is left and no output is lost."""
    found = row.happen(place)
    assert (found.cause, found.code, found.attempts) == (row.cause, row.code, row.attempts)
    assert row.message in found.message
    assert found.noticed_s < NOTICED_WITHIN_S
    assert found.left == 0
    assert row.loses or found.lost_bytes == 0
