"""From evidence to claim: the same bytes every time, every number traceable, and what was not run is said."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longproof.claim import derive as module
from longproof.claim.derive import claim_of, derive, load_view, write_claim
from longproof.claim.metrics import METRICS
from longproof.claim.statements import Claim, Finding, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.measure import Unknown, reported
from longproof.domain.request import Route
from longproof.errors import EvidenceError
from longproof.evidence.codec import decode
from longproof.evidence.records import Body, NoteBody
from longproof.evidence.store import Journal
from longproof.testing.builders import (
    build_deployment,
    build_header,
    build_protocol,
    build_refusal,
    build_request,
    build_timeline,
    build_view,
)
from longproof.testing.fake_clock import FakeClock

OUTPUT = 16
REPEATS = 3


def boundary(total: int, repeats: int = REPEATS, **timeline: Any) -> Iterator[tuple[str, Body]]:
    for repeat in range(repeats):
        cell = {"total": total, "prompt": total - OUTPUT, "output": OUTPUT, "repeat": repeat}
        answer = build_timeline(prompt_tokens=total - OUTPUT, **timeline)
        yield f"boundary/{total}/{repeat}", build_request("boundary", dict(cell), answer)


def refused(total: int) -> Iterator[tuple[str, Body]]:
    cell = {"total": total, "prompt": total - OUTPUT, "output": OUTPUT, "repeat": 0}
    yield f"boundary/{total}/0", build_request("boundary", dict(cell), build_refusal(prompt_tokens=total - OUTPUT))


def speed(length: int, repeats: int = REPEATS, **timeline: Any) -> Iterator[tuple[str, Body]]:
    for repeat in range(repeats):
        answer = build_timeline(prompt_tokens=length, ttft_ns=length * 1_000_000 + repeat * 2_000_000, **timeline)
        yield (
            f"speed/cold/{length}/{repeat}",
            build_request("speed", {"arm": "cold", "length": length, "repeat": repeat}, answer),
        )


def a_run() -> list[tuple[str, Body]]:
    return [*boundary(8192), *refused(8193), *speed(512), *speed(4096)]


def topics(claim: Claim) -> dict[str, str]:
    return {item.topic: item.text for item in claim.not_shown}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with Journal.create(tmp_path / "run", build_header()) as journal:
        journal.start_session(FakeClock())
        for key, body in a_run():
            journal.append(key, body)
        journal.seal(complete=True)
    return tmp_path / "run"


def test_bytes_are_the_same_when_derived_twice_and_elsewhere(run: Path, tmp_path: Path) -> None:
    first = write_claim(run)
    assert (run / "claim.json").read_bytes() == first
    assert write_claim(run) == first
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy" / "claim.json").write_text("not read back")
    code = "import sys, pathlib, longproof.claim.derive as d; d.write_claim(pathlib.Path(sys.argv[1]))"
    for seed in ("1", "2"):  # another process, another hash seed: no order of a set leaks into the bytes
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "copy")], check=True, env={"PYTHONHASHSEED": seed})
        assert (tmp_path / "copy" / "claim.json").read_bytes() == first


def test_claim_comes_back_when_its_bytes_are_read(run: Path) -> None:
    assert decode(Claim, write_claim(run), where="claim.json") == derive(run)


def test_claim_names_evidence_configuration_and_completeness_when_derived(run: Path) -> None:
    claim, view = derive(run), load_view(run)
    assert claim.evidence_sha256 == view.digest
    assert claim.fingerprint_digest == view.header.fingerprint.digest
    assert claim.facts == view.header.fingerprint.facts
    assert claim.unknown["kv_capacity_tokens"] == "not asked of this engine"
    assert "configured_limit_tokens" not in claim.unknown
    assert claim.complete
    assert claim.target == "http://127.0.0.1:8080"


def test_error_when_a_record_was_removed(run: Path) -> None:
    lines = (run / "records.jsonl").read_bytes().splitlines(keepends=True)
    (run / "records.jsonl").write_bytes(b"".join(lines[:4] + lines[5:]))
    with pytest.raises(EvidenceError, match=r"records.jsonl line 5 .* does not follow line 4"):
        derive(run)
    assert not (run / "claim.json").exists()


def test_claim_says_unfinished_when_the_run_was_killed(run: Path) -> None:
    (run / "seal.json").unlink()
    with (run / "records.jsonl").open("ab") as records:
        records.write(b'{"body":{"kind":"requ')
    claim = derive(run)
    assert not claim.complete
    assert claim.headline.startswith("Unfinished run: ")
    assert "interrupted" in topics(claim)["unfinished"]
    assert len(claim.statements) == len(derive(run).statements)


def test_every_statement_is_traceable_when_derived(run: Path) -> None:
    claim, keys = derive(run), {record.key for record in load_view(run).records}
    assert len({item.id for item in claim.statements}) == len(claim.statements)
    for item in claim.statements:
        assert METRICS[item.metric].unit == item.unit
        assert set(item.evidence) <= keys
        if item.n and item.samples and METRICS[item.metric].kind == "samples":
            assert item.n == len(item.samples)
        if item.standing is Standing.SHOWN:
            assert not isinstance(item.value, Unknown)
            assert item.n >= 1


def test_value_error_when_a_reader_names_evidence_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Finding(id="x.y", severity=Severity.FAULT, text="t", evidence=("nowhere",))
    monkeypatch.setattr(module, "READERS", {"x": lambda view: [found]})
    with pytest.raises(ValueError, match=r"x.y names evidence that is not there: nowhere"):
        claim_of(build_view())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metric": "loudness"}, "metric loudness in s"),
        ({"unit": "ms"}, "metric ttft in ms"),
        ({"id": "claim.faults"}, "two statements are called claim.faults"),
    ],
)
def test_value_error_when_a_reader_breaks_the_rules_of_claims(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, str], words: str
) -> None:
    statement = Statement(
        id="x.y", metric="ttft", text="t", standing=Standing.SHOWN, unit="s", value=Unknown(reason="r"), n=1
    )
    monkeypatch.setattr(module, "READERS", {"x": lambda view: [replace(statement, **change)]})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=words):
        claim_of(build_view())


def test_a_readers_own_error_escapes_when_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(view: EvidenceView) -> Iterator[Statement]:
        raise ZeroDivisionError("a reader's bug")
        yield

    monkeypatch.setattr(module, "READERS", {"x": broken})
    with pytest.raises(ZeroDivisionError):
        claim_of(build_view())


# headline


def test_headline_says_length_times_and_first_token_when_both_were_measured() -> None:
    # 4,096 tokens: TTFT 4.096, 4.098, 4.100 s; mean 4.098 s
    assert claim_of(build_view(*a_run())).headline == (
        "fake-135m on llama.cpp b7000 served up to 8,192 tokens (prompt + output), 3 of 3 times, one request at a time;"
        " a cold prompt of 4,096 tokens had its first token after 4.1 s (mean, n = 3)."
    )


def test_headline_says_n_1_when_asked_once() -> None:
    headline = claim_of(build_view(*boundary(4096, repeats=1), *speed(512, repeats=1))).headline
    assert "up to 4,096 tokens (prompt + output), once (n = 1), one request" in headline
    assert "after 512 ms (n = 1)." in headline


def test_headline_says_so_when_nothing_completed_or_nothing_was_asked() -> None:
    assert claim_of(build_view(*refused(256))).headline.startswith(
        "fake-135m on llama.cpp b7000 completed no length that was asked for"
    )
    assert "was asked nothing that shows how long" in claim_of(build_view()).headline


def test_headline_uses_speed_when_the_boundary_was_left_out() -> None:
    headline = claim_of(build_view(*speed(512), *speed(4096))).headline
    assert "completed cold prompts of 4,096 tokens 3 of 3 times; a cold prompt of 4,096 tokens" in headline


def test_headline_counts_faults_when_there_are_some() -> None:
    wrong = build_timeline(prompt_tokens=512)
    assert wrong.usage is not None
    wrong = replace(wrong, usage=replace(wrong.usage, prompt_tokens=400))
    claim = claim_of(build_view(("k", build_request("speed", {"arm": "cold", "length": 512, "repeat": 0}, wrong))))
    count = sum(item.severity is Severity.FAULT for item in claim.findings)
    assert count >= 1
    assert f"{count} fault" in claim.headline


def test_headline_names_no_model_or_version_when_the_server_tells_none() -> None:
    unknown = Unknown(reason="not told")
    header = build_header(deployment=build_deployment(model=unknown, engine_version=unknown))
    assert claim_of(build_view(header=header)).headline.startswith("A model of unknown name on llama.cpp was asked")


# conditions and faults


def test_conditions_say_engine_load_route_and_client_when_derived(run: Path) -> None:
    conditions = derive(run).conditions
    assert conditions["engine"] == "llama.cpp"
    assert conditions["engine_version"] == "b7000"
    assert conditions["kv_dtype"] == "unknown: not asked of this engine"
    assert conditions["load"] == "one request at a time, from one client"
    assert conditions["route"] == "/v1/chat/completions"
    assert "cores" in conditions["client"]
    assert conditions["sessions"] == "1"


def test_faults_are_not_shown_to_be_none_when_nobody_looked() -> None:
    statement = claim_of(build_view(*speed(512))).statement("faults")
    assert statement is not None
    assert statement.standing is Standing.NOT_SHOWN
    assert statement.n == 3
    nothing = claim_of(build_view()).statement("faults")
    assert nothing is not None
    assert nothing.value == Unknown(reason="no request was sent")


def test_faults_are_counted_when_accounting_looked() -> None:
    looked = build_request("accounting", {"arm": "length", "length": 97}, build_timeline(prompt_tokens=97))
    statement = claim_of(build_view(("accounting/length/97", looked))).statement("faults")
    assert statement is not None
    assert statement.standing is Standing.SHOWN
    assert statement.text == "No fault was found in 1 requests."


# what is not shown


def test_everything_never_asked_is_listed_when_only_the_four_probes_ran() -> None:
    found = topics(claim_of(build_view(*a_run())))
    assert {"quality", "busy", "overload", "reclaim", "restart", "sustained", "elsewhere"} <= set(found)
    assert found["accounting"].endswith("it was planned, and no request of it was sent.")
    assert "unfinished" not in found
    assert "sessions" not in found


def test_probe_is_listed_with_its_reason_when_left_out() -> None:
    protocol = build_protocol(steps=(), not_run={"warmth": "left out with --only"})
    found = topics(claim_of(build_view(*a_run(), header=build_header(protocol=protocol))))
    assert found["warmth"] == "What a repeated prompt costs: left out with --only."


def test_budget_is_named_when_it_ended_a_probe() -> None:
    note = NoteBody(probe="speed", what="budget_spent", detail={"reason": "9,000 of 9,000 tokens are spent"})
    found = topics(claim_of(build_view(*speed(512), ("run/budget/speed", note))))
    assert found["budget.speed"] == (
        "How fast cold prompts are answered, beyond what the budget held: 9,000 of 9,000 tokens are spent."
    )


def test_reason_is_given_when_the_engine_went_away() -> None:
    note = NoteBody(probe="run", what="engine_gone", detail={"reason": "it died after boundary/8192/0"})
    claim = claim_of(build_view(*speed(512), ("run/engine_gone/3", note), sealed=True, complete=False))
    assert topics(claim)["unfinished"].endswith("its protocol: it died after boundary/8192/0.")


def test_window_is_named_when_the_user_cut_it() -> None:
    cut = build_header(protocol=build_protocol(context_tokens=4096))
    assert "the server's limit is 8,192" in topics(claim_of(build_view(*speed(512), header=cut)))["window"]
    whole = build_header(protocol=build_protocol(context_tokens=8192))
    assert "window" not in topics(claim_of(build_view(*speed(512), header=whole)))


def test_repeats_and_tail_are_named_when_samples_are_few() -> None:
    few = topics(claim_of(build_view(*speed(512))))
    assert few["tail"].endswith("takes n = 59 at one length, and the most taken was n = 3.")
    assert "repeats" not in few
    once = topics(claim_of(build_view(*speed(512, repeats=1))))
    assert "n = 1 for usage_agreement, ttft, e2e, prefill_rate, tpot, decode_rate, success_rate at" in once["repeats"]
    many = topics(claim_of(build_view(*speed(512, repeats=59))))
    assert "tail" not in many


def test_coldness_is_not_proven_when_the_server_reports_no_cached_tokens() -> None:
    silent = build_timeline(prompt_tokens=512)
    assert silent.usage is not None
    silent = replace(silent, usage=replace(silent.usage, cached_tokens=None))
    body = build_request("speed", {"arm": "cold", "length": 512, "repeat": 0}, silent)
    assert "for 1 of 1 cold requests" in topics(claim_of(build_view(("speed/cold/512/0", body))))["cold_proof"]
    assert "cold_proof" not in topics(claim_of(build_view(*speed(512))))


def test_other_route_is_named_when_one_was_used() -> None:
    chat = topics(claim_of(build_view(*speed(512))))
    assert "/v1/completions" in chat["route"]
    other = topics(claim_of(build_view(*speed(512, route=Route.COMPLETIONS))))
    assert "/v1/chat/completions" in other["route"]


def test_sessions_are_named_when_the_run_was_resumed(tmp_path: Path) -> None:
    with Journal.create(tmp_path, build_header()) as journal:
        journal.start_session(FakeClock())
    with Journal.resume(tmp_path) as journal:
        journal.start_session(FakeClock())
        journal.seal(complete=True)
    claim = derive(tmp_path)
    assert "between the 2 sessions" in topics(claim)["sessions"]
    assert claim.conditions["sessions"] == "2"
    assert "; then " not in claim.conditions["client"]  # the same client twice is said once


def test_unknown_facts_are_named_when_the_server_keeps_silent() -> None:
    found = topics(claim_of(build_view(*speed(512))))
    assert "kv_dtype" in found["facts"]
    assert "configured_limit_tokens" not in found["facts"]
    told = build_deployment(kv_dtype=reported("f16", "x"))
    assert "kv_dtype" not in topics(claim_of(build_view(header=build_header(deployment=told))))["facts"]


def test_claim_file_is_readable_json_when_written(run: Path) -> None:
    document = json.loads(write_claim(run))
    assert document["format"] == 1
    assert document["evidence_sha256"] == derive(run).evidence_sha256
