import http.server
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from distperf.recipe.reporting import ReportSection
from launcher import events
from launcher.errors import LauncherError
from launcher.sinks import hooks
from launcher.sinks.endpoint import Endpoint
from launcher.sinks.feeding import feeding
from launcher.sinks.messages import Message
from scripts.recorded_run import record

pytestmark = pytest.mark.slow  # commands, sockets, and time that passes

MESSAGE = Message("failed", "r", "failed", 1, 7, "rank 0 on a: [x] 'quoted' $HOME", "/runs/r")


def section(**values):
    return ReportSection.model_construct(
        **{"prometheus": None, "tensorboard": False, "command": None, "webhook": None, **values}
    )


@pytest.fixture
def recorder(tmp_path):
    return record(tmp_path / "r", nodes=1, slots=2, steps=10, alive=True)


def test_command_gets_the_message(tmp_path):
    """As JSON on its input and as variables; what is in it is never read by a shell."""
    hooks.run_command(
        f'cat > {tmp_path}/in; echo "$DISTPERF_EVENT $DISTPERF_MESSAGE" > {tmp_path}/env', MESSAGE
    )
    assert json.loads((tmp_path / "in").read_text())["message"] == MESSAGE.message
    assert (tmp_path / "env").read_text() == f"failed {MESSAGE.message}\n"
    with pytest.raises(LauncherError, match="code 3: why not"):
        hooks.run_command("echo why not >&2; exit 3", MESSAGE)


class Collector(http.server.BaseHTTPRequestHandler):
    got = []

    def do_POST(self):
        self.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args):
        pass


def test_webhook(recorder):
    """What has happened is posted; a run's end is told before its launch returns."""
    server = http.server.HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    said = []
    with feeding(
        recorder.run, section(webhook=f"http://127.0.0.1:{server.server_port}/x"), said.append, look_s=0.05
    ):
        recorder.happened(events.Ended(recorder.t, "finished", 0))
        recorder.flush()
    server.shutdown()
    server.server_close()
    assert [message["event"] for message in Collector.got] == ["failed", "restarted", "ended"]
    assert said == []


def test_trouble_is_said_once(recorder):
    """A hook that fails stops nothing: it is said, once."""
    said = []
    with feeding(recorder.run, section(command="exit 5"), said.append, look_s=0.01):
        time.sleep(0.1)
    assert len(said) == 1
    assert "report.command ended with code 5" in said[0]
    with pytest.raises(LauncherError, match="webhook"):
        hooks.post("http://127.0.0.1:9/", MESSAGE)


def test_endpoint(recorder):
    """Metrics under /metrics while the run goes, on loopback; nothing else; a port in use is a warning."""
    said = []
    with feeding(recorder.run, section(prometheus="0"), said.append, look_s=0.05):
        url = said[0].split()[-1]
        assert url.startswith("http://127.0.0.1:")
        deadline = time.monotonic() + 20
        while "distperf_step" not in (text := urllib.request.urlopen(url).read().decode()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert "distperf_loss" in text
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(url.replace("metrics", "etc/passwd"))
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url)
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        feeding(recorder.run, section(prometheus=f"127.0.0.1:{taken.getsockname()[1]}"), said.append),
    ):
        pass
    assert "no metrics for Prometheus" in said[-1]
    Endpoint("[::1]:0", str).close()


def test_curves_for_tensorboard(recorder):
    """All steps that were there and those that come, in one file of the run's folder."""
    with feeding(recorder.run, section(tensorboard=True), print, look_s=0.02):
        recorder.step(2, 11)
        recorder.flush()
    (path,) = recorder.run.tensorboard.iterdir()
    data, found = path.read_bytes(), 0
    while data:
        length = int.from_bytes(data[:8], "little")
        data, found = data[16 + length :], found + 1
    assert found == 1 + 11
