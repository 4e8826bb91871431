import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from launcher.follow import Follower
from launcher.sinks.exposition import FIGURES, STATES, exposition
from scripts.recorded_run import record

MONITORING = Path("docs/monitoring").resolve()
LINE = re.compile(r'distperf_[a-z_]+\{(?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)+\} (?:-?[0-9.e+-]+|NaN|[+-]Inf)')


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return Follower(
        record(tmp_path_factory.mktemp("runs") / "r", nodes=2, slots=3, steps=40, alive=True).run
    ).seen()


def samples(text):
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_format(seen):
    """Every line is a sample or says what the next ones are; each family is told of once, before its samples."""
    text = exposition(seen)
    assert all(LINE.fullmatch(line) for line in samples(text))
    families = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(families) == len(set(families))
    assert {line.partition("{")[0] for line in samples(text)} == set(families)
    assert 'distperf_step{run="r"} 40' in text
    assert text.count(" 1\n") >= 1
    assert sum(f'state="{name}"' in text for name in STATES) == len(STATES)


def test_odd_values(seen):
    """Quotes and line ends in names, and numbers that are none."""
    odd = {**seen.last, "loss": math.nan, "grad_norm": math.inf, 'a"b\n\\': 7, "flag": True, "text": "x"}
    text = exposition(replace(seen, recent=(odd,)))
    assert all(LINE.fullmatch(line) for line in samples(text))
    assert 'distperf_loss{run="r"} NaN' in text
    assert 'distperf_grad_norm{run="r"} +Inf' in text
    assert r'distperf_metric{run="r",name="a\"b\n\\"} 7' in text
    assert "flag" not in text


def test_a_loss_that_training_calls_null(seen):
    """JSON has no NaN, Prometheus has; what is null because there is none of it stays away."""
    text = exposition(replace(seen, recent=({**seen.last, "loss": None, "mfu": None, "loss_scale": None},)))
    assert 'distperf_loss{run="r"} NaN' in text
    assert "distperf_mfu" not in text
    assert "distperf_loss_scale" not in text


def test_dashboard_and_alerts_ask_for_what_there_is(seen):
    """Every metric that the shipped Grafana dashboard and alert rules name is one that a run tells of."""
    told = set(re.findall(r"^# TYPE (\S+)", exposition(seen), re.MULTILINE)) | {
        name for name, _ in FIGURES.values()
    }
    panels = json.loads((MONITORING / "grafana.json").read_text())["panels"]
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    asked += [rule["expr"] for group in groups for rule in group["rules"]]
    named = set(re.findall(r"\bdistperf_[a-z_]+", " ".join(asked)))
    assert named - told <= {"distperf_metric", "distperf_stage_seconds"}
    assert len(named) > 12
