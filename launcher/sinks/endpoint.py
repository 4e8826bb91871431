"""The web address at which Prometheus finds a run: GET /metrics, and nothing else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from launcher.sinks.exposition import CONTENT_TYPE

LOOPBACK = "127.0.0.1"
REQUEST_LIMIT_S = 5.0


class Endpoint:
    """Serves what `text` gives, from threads of its own. Raises OSError where it cannot listen."""

    def __init__(self, address: str, text: Callable[[], str]) -> None:
        host, _, port = address.rpartition(":")
        self._server = _Server(host.strip("[]") or LOOPBACK, int(port), text)
        self.url = f"http://{host or LOOPBACK}:{self._server.server_address[1]}/metrics"
        threading.Thread(target=self._server.serve_forever, name="prometheus", daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int, text: Callable[[], str]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.text = text
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_LIMIT_S
    server: _Server

    def do_GET(self) -> None:
        """Answer a scrape."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        body = self.server.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """A scrape every few seconds is no news."""
