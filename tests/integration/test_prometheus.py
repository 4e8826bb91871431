"""A real Prometheus scrapes a real run, with the rules that distperf ships."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml
from integration.launches import Launch, start

MONITORING = Path("docs/monitoring").resolve()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("prometheus") is None and not os.environ.get("CI"),
        reason="no prometheus here (Debian: prometheus)",
    ),
]

SCRIPT = """
import os, time
import distperf

for step in range(1, 4000):
    distperf.report(step, **({"loss": 5 / step, "accuracy": 0.25} if os.environ["RANK"] == "0" else {}))
    time.sleep(0.05)
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def ask(port: int, path: str) -> list[dict]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}") as answer:
            return json.load(answer)["data"]["result" if "query" in path else "groups"]
    except (urllib.error.URLError, ConnectionError):  # it is starting
        return []


def test_scraped(tmp_path):
    """What Prometheus knows of the run is what it reported, rank by rank; the alert rules load and are quiet."""
    (tmp_path / "train.py").write_text(SCRIPT)
    run_port, port = free_port(), free_port()
    launch = start(tmp_path, "--nproc", "2", "--set", f"report.prometheus={run_port}", "--script", "train.py")
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    config["scrape_configs"][0] |= {
        "scrape_interval": "1s", "static_configs": [{"targets": [f"127.0.0.1:{run_port}"]}],
    }  # fmt: skip
    config["rule_files"] = [str(MONITORING / "alerts.yml")]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
               f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as prometheus:
        try:
            steps = watch(launch, port)
        finally:
            prometheus.terminate()
            launch.process.send_signal(signal.SIGINT)
            launch.end()
    assert sorted(sample["metric"]["rank"] for sample in steps) == ["0", "1"]
    assert {sample["metric"]["run"] for sample in steps} == {launch.run.name}


def watch(launch: Launch, port: int) -> list[dict]:
    """Wait until Prometheus has seen both ranks; their steps."""
    deadline = time.monotonic() + 60
    while len(steps := ask(port, "query?query=distperf_rank_step")) < 2:
        assert time.monotonic() < deadline, launch.process.poll()
        time.sleep(0.2)
    (accuracy,) = ask(port, "query?query=" + urllib.parse.quote('distperf_metric{name="accuracy"}'))
    assert accuracy["value"][1] == "0.25"
    (state,) = ask(port, "query?query=" + urllib.parse.quote("distperf_state==1"))
    assert state["metric"]["state"] == "running"
    (group,) = ask(port, "rules")
    assert len(group["rules"]) == 11
    assert not any(rule["alerts"] for rule in group["rules"])
    return steps
