"""A hub id is read through the hub's own client, here from a local server that speaks its protocol."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import sys
from longproof.domain.measure import value_or_none
from longproof.errors import ModelFileError
from longproof.geometry.read import read_geometry
try:
    model = read_geometry(sys.argv[1])
except ModelFileError as error:
    print(error.problem)
    sys.exit(2)
print(model.name, len(model.layers), value_or_none(model.weight_file_bytes))
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """owner/one has a config, owner/many an index as well; nothing else exists."""

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        content = self.files.get(self.path)
        self.send_response(404 if content is None else 200)
        if content is None:
            known = self.path.startswith(("/owner/one/", "/owner/many/"))
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
        self.send_header("ETag", f'"etag-of-{len(content or b"")}"')
        self.send_header("X-Repo-Commit", "0123456789abcdef0123456789abcdef01234567")
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        if with_body and content:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(config: Callable[..., dict[str, Any]]) -> Iterator[str]:
    said = json.dumps(config("HuggingFaceTB/SmolLM2-135M")).encode()
    files = {
        "/owner/one/resolve/main/config.json": said,
        "/owner/many/resolve/main/config.json": said,
        "/owner/many/resolve/main/model.safetensors.index.json": b'{"metadata": {"total_size": 269030016}}',
    }
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("TinyHub", (Hub,), {"files": files}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def look_up(model: str, endpoint: str, home: Path, **more: str) -> subprocess.CompletedProcess[str]:
    # the hub's client reads its settings when it is imported, so each look-up has its own process
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", **more}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, model],
        env={**kept, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(("model", "size"), [("owner/one", "None"), ("owner/many", "269030016")])
def test_hub_model_is_read_with_its_index_when_it_has_one(hub: str, tmp_path: Path, model: str, size: str) -> None:
    found = look_up(model, hub, tmp_path)
    assert found.stdout == f"{model} 30 {size}\n", found.stderr


def test_hub_model_that_does_not_exist_is_refused_by_name(hub: str, tmp_path: Path) -> None:
    found = look_up("owner/none", hub, tmp_path)
    assert (found.returncode, "owner/none" in found.stdout) == (2, True), found.stdout + found.stderr


def test_hub_is_said_to_be_out_of_reach_when_it_is(tmp_path: Path) -> None:
    found = look_up("owner/one", "http://127.0.0.1:1", tmp_path, HF_HUB_OFFLINE="1")
    assert (found.returncode, "cannot be reached for 'owner/one'" in found.stdout) == (2, True), (
        found.stdout + found.stderr
    )
