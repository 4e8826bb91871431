"""Messages to a command, and to a web address."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request

from launcher.errors import LauncherError
from launcher.sinks.messages import Message

COMMAND_LIMIT_S = 60.0
WEBHOOK_LIMIT_S = 10.0


def run_command(line: str, message: Message) -> None:
    """Run the shell line with the message on its standard input. Raises LauncherError when it fails."""
    env = {
        **os.environ,
        "DISTPERF_EVENT": message.event,
        "DISTPERF_RUN": message.run,
        "DISTPERF_MESSAGE": message.message,
    }
    process = subprocess.Popen(
        ["bash", "-c", line], env=env, text=True, start_new_session=True, stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, errors="replace",
    )  # fmt: skip
    try:
        _, said = process.communicate(json.dumps(message.as_json()), timeout=COMMAND_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise LauncherError(f"report.command did not end within {COMMAND_LIMIT_S:.0f} s: {line}") from None
    if process.returncode:
        last = said.strip().splitlines()[-1:] or [""]
        raise LauncherError(f"report.command ended with code {process.returncode}: {last[0]}")


def post(url: str, message: Message) -> None:
    """Post the message as JSON. Raises LauncherError when it does not arrive."""
    body = json.dumps(message.as_json()).encode()
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=WEBHOOK_LIMIT_S):
            return
    except (urllib.error.URLError, TimeoutError, OSError, ValueError) as error:
        raise LauncherError(f"report.webhook: {error}") from None
