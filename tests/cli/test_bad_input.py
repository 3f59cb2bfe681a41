"""Bad input gets one clear message with the next step, exit code 2, and no traceback."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from longproof.cli.main import run
from longproof.errors import EXIT_USER_ERROR
from longproof.testing.behaviour import Behaviour
from longproof.testing.lying_engine import lying_engine


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a failing command says on stderr; its stdout stays empty."""
    code = run(arguments)
    out, err = capsys.readouterr()
    assert code == EXIT_USER_ERROR, err
    assert out == ""
    assert "Traceback" not in err
    assert "next:" in err
    return err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands run in an empty directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", ["prove", "inspect"])
def test_an_unreachable_server_is_named(command: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in told(capsys, command, f"http://127.0.0.1:{port}")
    assert not any(here.rglob("records.jsonl"))


def test_a_wrong_key_points_to_the_option(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with lying_engine(Behaviour(api_key="right")) as url:
        assert "--api-key-env" in told(capsys, "prove", url)
        monkeypatch.setenv("WRONG_KEY", "sk-wrong-and-secret")
        err = told(capsys, "prove", url, "--api-key-env", "WRONG_KEY")
    assert "sk-wrong-and-secret" not in err
    assert "key" in err


def test_a_key_variable_that_is_not_set_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "NO_SUCH_KEY" in told(capsys, "prove", "http://127.0.0.1:1", "--api-key-env", "NO_SUCH_KEY")


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html><body>hello</body></html>")

    def log_message(self, *_: object) -> None: ...


def test_a_server_that_speaks_no_openai_is_told_as_such(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        assert "OpenAI" in told(capsys, "prove", f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_unknown_model_name_lists_the_served_ones(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lying_engine() as url:
        err = told(capsys, "prove", url, "--model", "gpt-17")
    assert "gpt-17" in err
    assert "fake-135m" in err


def test_an_unreadable_model_file_is_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "broken.gguf").write_bytes(b"GGUF but not really")
    assert "broken.gguf" in told(capsys, "demo", "--model", "broken.gguf")
    assert "missing.gguf" in told(capsys, "demo", "--model", "missing.gguf")


@pytest.mark.parametrize("budget", ["100tok", "1ms"])
def test_a_budget_that_measures_nothing_is_refused(budget: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with lying_engine() as url:
        assert "--budget" in told(capsys, "prove", url, "--budget", budget)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--lengths", "eight"), "'eight' is not a token count"),
        (("--budget", "soon"), "'soon' is neither a time nor a number of tokens"),
        (("--context", "16k"), "the server's own limit is 8,192"),
        (("--lengths", "9000"), "does not fit"),
        (("--only", "sped"), "names no probe"),
        (("--timeout", "quickly"), "is not a duration"),
        (("--repeats", "0"), "measures nothing"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    arguments: tuple[str, ...], words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with lying_engine() as url:
        assert words in told(capsys, "prove", url, *arguments)


@pytest.mark.parametrize("command", ["derive", "report", "gate"])
def test_a_directory_without_evidence_is_named(command: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    extra = ("--require", "context >= 8000") if command == "gate" else ()
    assert "nowhere" in told(capsys, command, "nowhere", *extra)


def test_a_gate_without_requirements_says_what_to_add(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--require" in told(capsys, "gate", "nowhere")


def test_no_url_at_all_says_what_one_looks_like(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "prove", "not a url")


@pytest.mark.parametrize("option", [("--slots", "4"), ("--model", "x.gguf"), ("--threads", "2")])
def test_an_option_of_the_embedded_engine_is_refused_where_it_would_do_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    (here / "fleet.toml").write_text('[[replica]]\nurl = "http://127.0.0.1:9"\n')
    assert "without a file" in told(capsys, "serve", "fleet.toml", *option)
    assert "embedded engine" in told(capsys, "serve", "--engines", "http://127.0.0.1:9", *option)
