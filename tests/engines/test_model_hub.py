"""``hf://`` files come from the hub with its own client, here from a local server that speaks its protocol."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REFUSALS = {
    "/owner/missing/": (404, "RepoNotFound"),
    "/owner/gated/": (403, "GatedRepo"),
    "/owner/repository/resolve/no-such-tag/": (404, "RevisionNotFound"),
    "/owner/repository/": (404, "EntryNotFound"),
}
PROGRAM = """
import sys
from longproof.engines.model_files import resolve_model
from longproof.errors import ModelFileError
try:
    print(resolve_model(sys.argv[1]))
except ModelFileError as error:
    print(error.problem, error.advice, sep="\\n")
    sys.exit(2)
"""


class Hub(http.server.BaseHTTPRequestHandler):
    """HEAD and GET of /owner/repository/resolve/REVISION/FILE, for one file and with the hub's own error codes."""

    protocol_version = "HTTP/1.1"
    content: bytes

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        known = ("/owner/repository/resolve/main/q4/tiny.gguf", f"/owner/repository/resolve/{COMMIT}/q4/tiny.gguf")
        if self.path in known:
            self.send_response(200)
            self.send_header("ETag", '"an-etag"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(self.content)))
            self.end_headers()
            if with_body:
                self.wfile.write(self.content)
            return
        status, code = next(refusal for prefix, refusal in REFUSALS.items() if self.path.startswith(prefix))
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(tiny_gguf: Callable[..., Path]) -> Iterator[str]:
    """The address of a hub with the repository ``owner/repository``."""
    content = tiny_gguf("served.gguf").read_bytes()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("TinyHub", (Hub,), {"content": content}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def resolve(address: str, endpoint: str, home: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    # the hub's client reads its settings when it is imported, so each look-up has its own process
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", **settings}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, address],
        env={**kept, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_hub_file_is_fetched_once_and_used_offline_afterwards(hub: str, tmp_path: Path) -> None:
    address, home = "hf://owner/repository/q4/tiny.gguf", tmp_path / "home"
    first = resolve(address, hub, home)
    assert first.returncode == 0, first.stdout + first.stderr
    path = Path(first.stdout.strip())
    assert path.name == "tiny.gguf"
    assert path.read_bytes() == (tmp_path / "served.gguf").read_bytes()
    offline = resolve(address, "http://127.0.0.1:1", home)
    assert (offline.returncode, offline.stdout) == (0, first.stdout), offline.stderr


def test_a_hub_file_is_taken_at_the_revision_when_one_is_named(hub: str, tmp_path: Path) -> None:
    found = resolve(f"hf://owner/repository@{COMMIT}/q4/tiny.gguf", hub, tmp_path / "home")
    assert found.returncode == 0, found.stdout + found.stderr
    assert COMMIT in found.stdout


@pytest.mark.parametrize(
    ("address", "words", "advice"),
    [
        ("hf://owner/missing/tiny.gguf", "no repository owner/missing, or it is private", "HF_TOKEN"),
        ("hf://owner/gated/tiny.gguf", "owner/gated is gated", "accept its conditions"),
        ("hf://owner/repository@no-such-tag/tiny.gguf", "no revision no-such-tag", "after '@'"),
        ("hf://owner/repository/other.gguf", "owner/repository has no file other.gguf", "name and folder"),
        ("hf://owner/rep--ository/tiny.gguf", "is not a hub file", "hf://owner/repository/file.gguf"),
    ],
)
def test_a_hub_file_is_refused_with_the_next_step_when_the_hub_refuses(
    hub: str, tmp_path: Path, address: str, words: str, advice: str
) -> None:
    refused = resolve(address, hub, tmp_path / "home")
    problem, next_step = refused.stdout.splitlines()
    assert refused.returncode == 2
    assert words in problem
    assert advice in next_step


def test_the_error_says_so_when_the_hub_is_off_and_the_file_is_not_there(hub: str, tmp_path: Path) -> None:
    # offline mode ends the same way as a dead network, without the client's half minute of retries
    refused = resolve("hf://owner/repository/q4/tiny.gguf", hub, tmp_path / "home", HF_HUB_OFFLINE="1")
    problem, next_step = refused.stdout.splitlines()
    assert "is not on this machine, and the hub cannot be reached" in problem
    assert "--model PATH" in next_step
