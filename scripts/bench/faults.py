"""Break runs in every way of the fault matrix and write what became of them into docs/reliability.md.

    python scripts/bench/faults.py [--print]       as root, with namespaces; rows that need what is missing are left out

The rows, and what tests hold them to, are in tests/integration/faults.py.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from integration.faults import CGROUP, ROWS, Found, Place, Row, out_of_memory  # noqa: E402
from integration.lab import Lab, why_no_lab  # noqa: E402

DOCUMENT = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- matrix: scripts/bench/faults.py -->", "<!-- end of matrix -->"
HEAD = (
    "| fault | cause named | noticed after, s | outcome | processes left | log bytes lost |\n"
    "| --- | --- | --- | --- | --- | --- |\n"
)


def line(row: Row, found: Found) -> str:
    message = re.sub(r"/\S+/(?=\w+\.py)", ".../", found.message.partition("\n")[0])  # folders are made anew
    cause = f"{found.cause}: {message}" if found.cause else "-"
    cells = (row.name, cause, f"{found.noticed_s:.2f}", found.outcome, found.left, found.lost_bytes)
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"


def happen(row: Row, lab: Lab | None) -> Found:
    if lab is None:
        with tempfile.TemporaryDirectory() as folder:
            return row.happen(Place(Path(folder)))
    folder = lab.dir / "shared" / f"row-{ROWS.index(row)}"
    folder.mkdir()
    return row.happen(Place(folder, lab))


def table(lab: Lab | None) -> str:
    text = HEAD
    for row in ROWS:
        if (row.lab and lab is None) or (row.happen is out_of_memory and not CGROUP.is_dir()):
            continue
        text += line(row, happen(row, lab if row.lab else None))
        print(text.splitlines()[-1], flush=True)
    where = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    return text + f"\nMeasured {datetime.date.today()} on {where}.\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--print", action="store_true", help="leave the document alone")
    keep = parser.parse_args().print
    lab = None if why_no_lab() else Lab(f"faults-{os.getpid()}")
    try:
        if lab is not None:
            lab.testbed("up", 3)
        text = table(lab)
    finally:
        if lab is not None:
            lab.testbed("down")
    if not keep:
        before, _, rest = DOCUMENT.read_text().partition(BEGIN)
        DOCUMENT.write_text(f"{before}{BEGIN}\n{text}{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
