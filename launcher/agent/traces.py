"""A profiler's trace, from this node's disk to the controller, in pieces."""

import base64
import os
from typing import Any, Dict, Iterator, Tuple

PIECE_BYTES = 192 << 10
MAX_BYTES = 256 << 20


def pieces(folder: str, record: Dict[str, Any]) -> Iterator[Tuple[str, str, bool]]:
    """(id, base64, whether it is the last) of the file that a rank's record names; it is removed then.

    A record comes from a rank, and so perhaps from user code: only files of our own folder are read. Raises OSError.
    """
    path, number = str(record.get("path")), str(record.get("id"))
    if os.path.dirname(os.path.realpath(path)) != os.path.realpath(folder) or not number.isalnum():
        raise OSError("%s is not in %s" % (path, folder))
    if os.path.getsize(path) > MAX_BYTES:
        raise OSError("it has more than %d MiB: take fewer steps" % (MAX_BYTES >> 20))
    with open(path, "rb") as file:
        data = file.read(PIECE_BYTES)
        while True:
            after = file.read(PIECE_BYTES)
            yield number, base64.b64encode(data).decode("ascii"), not after
            if not after:
                break
            data = after
    os.unlink(path)
