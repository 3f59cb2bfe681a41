"""A second door to a lying engine, open while the engine itself is down: who is told to restart it knocks here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class EngineControl:
    """``POST /restart`` calls `restart` and answers with the URL it gives, as text."""

    def __init__(self, restart: Callable[[], str]) -> None:
        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                known = self.path == "/restart"
                answer = restart().encode() if known else b"POST /restart is all there is"
                self.send_response(200 if known else 404)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
