"""The terminal card and its relatives."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len

from longproof.claim.derive import claim_of
from longproof.claim.gate import gate
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Unknown, reported
from longproof.report import json_report
from longproof.report.text import (
    print_card,
    print_gate,
    print_inspect,
    render_card,
    render_differences,
    render_gate,
    render_inspect,
    show,
)
from longproof.testing.builders import build_deployment
from longproof.testing.scenarios import HOSTILE, full, lying, million, refused
from longproof.testing.scenarios_load import LOAD_SCENARIOS


class _Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def _card(view: EvidenceView) -> str:
    out = io.StringIO()
    show(
        render_card(claim_of(view), view, directory=Path("evidence/run"), report=Path("evidence/run/report.html")), out
    )
    return out.getvalue()


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def test_card_fits_80_columns_when_any_run_is_shown(view: EvidenceView) -> None:
    lines = _card(view).splitlines()
    assert max(cell_len(line) for line in lines) <= 80
    assert all(line == line.rstrip() for line in lines)


def test_card_is_equal_when_shown_twice(view: EvidenceView) -> None:
    assert _card(view) == _card(view)


def test_card_is_plain_when_nobody_sees_colours(view: EvidenceView) -> None:
    assert "\x1b" not in _card(view)


def test_card_has_colours_only_when_the_terminal_may_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    card = render_card(claim_of(lying()), lying())
    coloured, quiet = _Terminal(), _Terminal()
    show(card, coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    show(card, quiet)
    assert re.search(r"\x1b\[(1;)?3[0-9]", coloured.getvalue())
    assert not re.search(r"\x1b\[(\d+;)*3[0-9]", quiet.getvalue())


def test_card_sends_no_escape_of_the_server_when_words_are_hostile() -> None:
    out = _Terminal()
    show(render_card(claim_of(lying()), lying()), out)
    assert "\x1b[31mred" not in out.getvalue()
    assert "\ufffd[31mred" in out.getvalue()
    assert HOSTILE not in out.getvalue()


def test_card_shows_the_three_numbers_side_by_side_when_known() -> None:
    lines = _card(million()).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("Configured limit"))
    assert re.split(r"\s{2,}", lines[head]) == ["Configured limit", "KV capacity", "Measured boundary"]
    assert re.split(r"\s{2,}", lines[head + 1]) == ["1,048,576 tokens", "3,407,872 tokens", "1,000,443 tokens"]
    assert re.split(r"\s{2,}", lines[head + 2]) == ["reported", "reported", "measured, n\u00a0=\u00a01"]


def test_card_lists_every_length_with_interval_and_n_when_measured() -> None:
    rows = re.findall(r"^ *([\d,]+) +[\d.]+ m?s \[[\d.]+, [\d.]+\] .* 5$", _card(full()), re.MULTILINE)
    assert rows == ["128", "256", "512", "1,024", "2,048", "4,096", "8,176"]


def test_card_puts_faults_first_when_there_are_both() -> None:
    labels = re.findall(r"^ ?(FAULT|CAUTION) ", _card(lying()), re.MULTILINE)
    assert labels == sorted(labels, reverse=True)
    assert {"FAULT", "CAUTION"} == set(labels)


def test_card_quotes_the_server_when_it_refused() -> None:
    assert '"Loading model"' in _card(refused())


def test_card_is_ascii_when_the_stream_takes_nothing_else() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    show(render_card(claim_of(full()), full()), out)
    out.flush()
    assert b"8,192 tokens" in raw.getvalue()
    assert b"n = 5" in raw.getvalue()


def test_card_names_evidence_and_report_when_printed(write_run, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    directory = write_run(full(), tmp_path / "run")
    print_card(claim_of(full()), directory=directory, report=directory / "report.html")
    shown = "".join(capsys.readouterr().out.split())
    assert f"{directory}(100records,complete,sealed)" in shown
    assert f"{directory}/report.html" in shown


def test_inspect_gives_value_source_and_reason_when_fields_differ() -> None:
    out = io.StringIO()
    deployment = build_deployment(
        kv_capacity_tokens=reported(16_384, "GET /metrics"), layout=Unknown(reason="the server does not report it")
    )
    show(render_inspect(deployment), out)
    assert re.search(r"KV capacity \(tokens\) +16,384 +reported +GET /metrics", out.getvalue())
    assert re.search(r"Layout +the server does not report it", out.getvalue())
    assert max(cell_len(line) for line in out.getvalue().splitlines()) <= 80


def test_inspect_is_json_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    print_inspect(build_deployment(layout=Unknown(reason="silent")), as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["engine"] == "llama.cpp"
    assert document["fields"]["layout"] == {"unknown": "silent"}
    assert document["fields"]["slots"] == {"value": 1, "provenance": "reported", "source": "GET /props total_slots"}


def test_gate_names_each_verdict_when_rendered() -> None:
    report = gate(claim_of(full()), ["context >= 8000", "context >= 100000", "ttft_p95@4096 <= 20"])
    out = io.StringIO()
    show(render_gate(report), out)
    labels = re.findall(r"^ ?(PASS|FAIL|UNDECIDED) (.*)$", out.getvalue(), re.MULTILINE)
    assert labels == [
        ("PASS", "context >= 8000"),
        ("FAIL", "context >= 100000"),
        ("UNDECIDED", "ttft_p95@4096 <= 20"),
    ]
    assert max(cell_len(line) for line in out.getvalue().splitlines()) <= 80


def test_gate_shows_faults_when_nobody_required_their_absence() -> None:
    out = io.StringIO()
    show(render_gate(gate(claim_of(lying()), ["context >= 1"])), out)
    assert "Not required, and yet" in out.getvalue()
    assert "fault stream.error_in_200" in out.getvalue()


def test_gate_is_json_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    report = gate(claim_of(full()), ["context >= 8000"])
    print_gate(report, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == 0
    assert document["verdicts"][0]["verdict"] == "pass"
    assert json_report.gate_json(report) == json_report.gate_json(report)


def test_differences_name_field_and_both_values_when_rendered() -> None:
    out = io.StringIO()
    show(render_differences([("kv_dtype", "f16", "q8_0")]), out)
    assert re.search(r"KV dtype +f16 +q8_0", out.getvalue())


def test_card_needs_no_plots_when_imported() -> None:
    script = "import sys, longproof.report.text; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize("make", LOAD_SCENARIOS.values(), ids=list(LOAD_SCENARIOS))
def test_card_has_a_block_of_load_when_there_was_load(make: Callable[[], EvidenceView]) -> None:
    card = _card(make())
    assert "Under load\n" in card
    assert max(cell_len(line) for line in card.splitlines()) <= 80


def test_card_names_the_heaviest_answers_when_there_was_load() -> None:
    card = _card(LOAD_SCENARIOS["loaded"]())
    block = card.split("Under load\n")[1].split("\n\n")[0]
    assert re.search(r"^busy +long, first token / alone, 12,000 +1\.\d\d \[", block, re.MULTILINE)
    assert re.search(r"^overload +most goodput, 8 at a time +\d", block, re.MULTILINE)
    assert "8 × 12,000" in block  # the longest prompt, and the most of them at once
    assert len(block.splitlines()) <= 24


def test_card_has_no_block_of_load_when_the_server_was_idle() -> None:
    assert "Under load" not in _card(full())
