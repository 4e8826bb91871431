import re
from pathlib import Path

from launcher.follow import Follower
from launcher.sinks.exposition import exposition
from launcher.sinks.reference import reference
from scripts.recorded_run import record


def test_the_page_is_up_to_date():
    """Made by `python -m launcher.sinks.reference > docs/metrics.md`."""
    assert Path("docs/metrics.md").read_text() == reference()


def test_every_metric_has_a_line(tmp_path):
    """What a run shows to Prometheus is in the page, with its type."""
    seen = Follower(record(tmp_path / "r", nodes=2, slots=2, steps=20, alive=True).run).seen()
    told = re.findall(r"^# TYPE (\S+) (\S+)", exposition(seen), re.MULTILINE)
    assert len(told) > 20
    assert all(f"| `{name}` | {kind} |" in reference() for name, kind in told)
