"""The alert rules that distperf ships, tried by Prometheus' own tool on series as runs show them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

RULES = Path("docs/monitoring/alerts.yml").resolve()
# Rule -> series that it is to fire on (minutes apart), and series that it is to be quiet on.
CASES = {
    "DistperfStalled": ({'distperf_state{run="r",state="stalled"}': "1x30"},
                        {'distperf_state{run="r",state="stalled"}': "0x30"}),
    "DistperfNoProgress": ({'distperf_step{run="r"}': "7x30", 'distperf_state{run="r",state="running"}': "1x30"},
                           {'distperf_step{run="r"}': "0+1x30", 'distperf_state{run="r",state="running"}': "1x30"}),
    "DistperfFailing": ({'distperf_failures_total{run="r",cause="exit"}': "0 0 1 2 2x26"},
                        {'distperf_failures_total{run="r",cause="exit"}': "0 1x29"}),
    "DistperfLossNotFinite": ({'distperf_loss{run="r"}': "NaN " * 30}, {'distperf_loss{run="r"}': "2.5x30"}),
    "DistperfHostUnreachable": ({'distperf_hosts_unreachable{run="r"}': "1x30"},
                                {'distperf_hosts_unreachable{run="r"}': "0x30"}),
    "DistperfStragglers": ({'distperf_stragglers{run="r"}': "2x30"}, {'distperf_stragglers{run="r"}': "0x30"}),
    "DistperfWaitsForData": ({'distperf_data_wait_ratio{run="r"}': "0.4x30"},
                             {'distperf_data_wait_ratio{run="r"}': "0.02x30"}),
    "DistperfNodeMemory": ({'distperf_node_memory_bytes{run="r",host="a"}': "97x30",
                            'distperf_node_memory_total_bytes{run="r",host="a"}': "100x30"},
                           {'distperf_node_memory_bytes{run="r",host="a"}': "50x30",
                            'distperf_node_memory_total_bytes{run="r",host="a"}': "100x30"}),
    "DistperfDeviceSlowedDown": ({'distperf_device_slowed_down{run="r",host="a",device="3"}': "1x30"},
                                 {'distperf_device_slowed_down{run="r",host="a",device="3"}': "0x30"}),
    "DistperfDeviceErrors": ({'distperf_device_uncorrected_errors{run="r",host="a",device="3"}': "1x30"},
                             {'distperf_device_uncorrected_errors{run="r",host="a",device="3"}': "0x30"}),
    "DistperfGone": ({'up{job="distperf",instance="a:9400"}': "0x30"},
                     {'up{job="distperf",instance="a:9400"}': "1x30"}),
}  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("promtool") is None and not os.environ.get("CI"),
        reason="no promtool here (Debian: prometheus)",
    ),
]


def case(name: str, series: dict[str, str], *, fires: bool) -> dict:
    """A test of promtool's: what is firing after 29 minutes."""
    rows = [{"series": key, "values": values} for key, values in series.items()]
    sample = f'ALERTS{{alertname="{name}",alertstate="firing"}}'
    asked = {
        "expr": f'count(ALERTS{{alertstate="firing",alertname="{name}"}})',
        "eval_time": "29m",
        "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
    }
    return {"name": sample, "interval": "1m", "input_series": rows, "promql_expr_test": [asked]}


def test_rules_fire_when_they_should(tmp_path):
    """Each shipped rule fires on the series of a run with its trouble, and is quiet on those of a healthy one."""
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert {rule["alert"] for rule in rules} == set(CASES)
    tests = [
        case(name, series, fires=fires)
        for name, (bad, good) in CASES.items()
        for series, fires in ((bad, True), (good, False))
    ]
    suite = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "suite.yml").write_text(yaml.safe_dump(suite))
    done = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "suite.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
