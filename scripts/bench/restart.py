"""How long a run stands still when a rank is killed: from SIGKILL to the first new step, from memory and from disk.

    python scripts/bench/restart.py [--rounds 3] [--hidden 768] [--layers 12]

Two local ranks over gloo train a Llama (110 M parameters by default) on a tiny batch. Once `step` has been kept (in
memory, or as a checkpoint), rank 1 is killed. Up: the last rank of the next attempt is there (its process, with torch
imported). Loaded: ranks say where they go on. First step: the first line of metrics of the attempt. Medians.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DISTPERF = Path(sys.executable).with_name("distperf")
KEEPS = {
    "memory": "{every_steps: 0, save_last: false, memory: {every_steps: 1}}",
    "disk": "{every_steps: 1, keep: 1, save_last: false}",
}
RECIPE = """
name: bench
model: {{family: llama, layers: {layers}, hidden: {hidden}, heads: 12, kv_heads: 12, ffn: {ffn}, vocab: 16384}}
data: {{synthetic: true, seq_len: 32}}
train: {{steps: 400, global_batch: 2}}
precision: fp32
parallel: {{zero: 2}}
checkpoint: {checkpoint}
launch: {{grace_s: 3}}
"""
STEP = 3


def lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:  # half written
                return


def waited(find: Any, within_s: float = 300) -> Any:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if (found := find()) is not None:
            return found
        time.sleep(0.02)
    raise TimeoutError("it never came")


def event(run: Path, kind: str, **wanted: Any) -> dict[str, Any] | None:
    """The last line of the journal with these values."""
    found = [
        line
        for line in lines(run / "events.jsonl")
        if line["event"] == kind and wanted.items() <= {**line, **line.get("record", {})}.items()
    ]
    return found[-1] if found else None


def one(keeps: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds from the kill, by what is reached."""
    with tempfile.TemporaryDirectory() as tmp:
        recipe = RECIPE.format(
            checkpoint=KEEPS[keeps], layers=options.layers, hidden=options.hidden, ffn=8 * options.hidden // 3
        )
        Path(tmp, "recipe.yaml").write_text(recipe)
        process = subprocess.Popen(
            [DISTPERF, "launch", "recipe.yaml", "--nproc", "2"],
            cwd=tmp, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            run = Path(tmp, "runs", "latest")
            waited(
                lambda: next((m for m in lines(run / "metrics.jsonl") if m.get("step", 0) > STEP + 1), None)
            )
            began = time.time()
            os.kill(event(run, "RankStarted", rank=1)["pid"], signal.SIGKILL)
            resumed = waited(lambda: event(run, "RankReported", attempt=2, event="resume"))
            assert resumed["record"]["memory"] == (keeps == "memory"), resumed
            waited(lambda: next((m for m in lines(run / "metrics.jsonl") if m["attempt"] == 2), None))
            first_step = time.time()  # lines of metrics have no time: at most 0.02 s late
            up = max(
                line["time"]
                for line in lines(run / "events.jsonl")
                if line["event"] == "RankStarted" and line["attempt"] == 2
            )
            return {
                "up": up - began,
                "loaded": resumed["time"] - began,
                "first step": first_step - began,
                "from up to first step": first_step - up,
                "a step": statistics.median(m["step_s"] for m in lines(run / "metrics.jsonl")),
            }
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}; seconds from the kill on: median (least to most)")
    for keeps in KEEPS:
        rounds = [one(keeps, options) for _ in range(options.rounds)]
        for name in rounds[0]:
            values = [seconds[name] for seconds in rounds]
            print(
                f"| {keeps} | {name} | {statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f}) |"
            )


if __name__ == "__main__":
    main()
