import base64
import os

import pytest

from launcher.agent.traces import PIECE_BYTES, pieces
from launcher.protocol import Trace
from launcher.rundir import RunDir
from launcher.tracefiles import keep


@pytest.mark.parametrize("size", [0, 10, PIECE_BYTES, PIECE_BYTES * 2 + 1])
def test_every_byte_arrives_in_order(tmp_path, size):
    """Whole under its name when the last piece is there, and not before; the rank's own file goes."""
    data = os.urandom(size)
    path = tmp_path / "rank.stacks.1t1.json.gz"
    path.write_bytes(data)
    run = RunDir(tmp_path / "run")
    sent = list(pieces(str(tmp_path), {"path": str(path), "id": "1t1"}))
    assert [last for _, _, last in sent] == [False] * (len(sent) - 1) + [True]
    for piece in sent:
        assert not run.trace("1t1", 3).exists()
        keep(run, Trace(1, 3, *piece))
    assert run.trace("1t1", 3).read_bytes() == data
    assert not path.exists()
    assert base64.b64decode(sent[0][1]) == data[:PIECE_BYTES]


@pytest.mark.parametrize("record", [{"path": "/etc/passwd", "id": "1t1"}, {"id": "1t1"}, {"path": None}])
def test_no_other_file_is_read(tmp_path, record):
    """A record comes from a rank, and so perhaps from user code; an id is no path either."""
    with pytest.raises(OSError, match="is not in"):
        list(pieces(str(tmp_path), record))
    own = tmp_path / "t.json.gz"
    own.write_bytes(b"x")
    with pytest.raises(OSError, match="is not in"):
        list(pieces(str(tmp_path), {"path": str(own), "id": "../../x"}))
