"""Two proofs against each other: what is refused, what is paired, and what a row may say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from longproof.claim.compare import Comparison, Said, compare, gate_comparison
from longproof.claim.view import EvidenceView
from longproof.domain.deployment import Deployment
from longproof.domain.measure import Unknown, reported
from longproof.errors import ConfigurationMismatch, EvidenceError, UsageError
from longproof.evidence.records import Body, RequestBody, WindowBody
from longproof.testing.builders import (
    build_deployment,
    build_header,
    build_protocol,
    build_refusal,
    build_request,
    build_sample,
    build_timeline,
    build_view,
)

MS = 1_000_000
S = 1_000_000_000


def asked(
    round_: int,
    *,
    length: int = 512,
    ttft_ms: float = 100,
    itl_ms: float = 10,
    text: str = "the same",
    turn: int = 0,
    refused: bool = False,
    arm: str = "pair",
) -> tuple[str, RequestBody]:
    """One question of the probe that asks both sides: its prompt is told by length and round."""
    timeline = build_timeline(
        prompt_tokens=length,
        ttft_ns=round(ttft_ms * MS),
        itl_ns=round(itl_ms * MS),
        submitted_ns=(10 * round_ + turn + 1) * S,
        text=text,
    )
    body = build_request(
        "compare",
        {"arm": arm, "length": length, "repeat": round_, "turn": turn},
        build_refusal(prompt_tokens=length) if refused else timeline,
        prompt_sha256=f"{length:032x}{round_:032x}",
    )
    return f"compare/{length}/{round_}{'' if arm == 'pair' else '/again'}", body


def view(
    entries: Sequence[tuple[str, Body]], *, deployment: Deployment | None = None, output: int = 16
) -> EvidenceView:
    header = build_header(deployment=deployment or build_deployment(), protocol=build_protocol(output_tokens=output))
    return build_view(*entries, header=header)


def quantized(**facts: object) -> Deployment:
    return build_deployment(kv_dtype=reported("q8_0", "GET /props"), **facts)


def sides(
    *,
    factor: float = 1.0,
    jitter: float = 0.02,
    n: int = 6,
    lengths: Sequence[int] = (512, 2048),
    text_b: str = "the same",
    seed: int = 0,
) -> tuple[EvidenceView, EvidenceView]:
    """A, and B with `factor` times its times. Both vary together by `jitter` from pair to pair, and each by a fifth of
    that of its own."""
    rng = np.random.default_rng(seed)
    a: list[tuple[str, Body]] = []
    b: list[tuple[str, Body]] = []
    for length in lengths:
        for round_ in range(n):
            common, own_a, own_b = np.exp(rng.normal(0, (jitter, jitter / 5, jitter / 5)))
            a.append(asked(round_, length=length, ttft_ms=100 * common * own_a, itl_ms=10 * common * own_a))
            slow = factor * common * own_b
            b.append(asked(round_, length=length, ttft_ms=100 * slow, itl_ms=10 * slow, text=text_b, turn=1))
    f16 = build_deployment(kv_dtype=reported("f16", "GET /props"))
    return view(a, deployment=f16), view(b, deployment=quantized())


def said(comparison: Comparison, metric: str) -> list[Said]:
    return [row.said for row in comparison.rows if row.metric == metric]


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_two_facts_that_differ_are_refused_when_no_factor_is_named() -> None:
    a, b = view([asked(0)]), view([asked(0)], deployment=build_deployment(slots=4, limit_tokens=4096))
    with pytest.raises(ConfigurationMismatch, match="differ in") as refusal:
        compare(a, b)
    assert {name for name, _, _ in refusal.value.fields} >= {"slots", "configured_limit_tokens"}
    assert "slots: A 1, B 4" in refusal.value.problem


def test_more_than_the_named_factor_is_refused_when_one_is_named() -> None:
    f16 = build_deployment(kv_dtype=reported("f16", "GET /props"))
    a, b = view([asked(0)], deployment=f16), view([asked(0)], deployment=quantized(slots=reported(4, "GET /props")))
    with pytest.raises(ConfigurationMismatch, match="also in slots"):
        compare(a, b, factors=["kv-dtype"])
    assert compare(a, b, factors=["kv-dtype", "slots"]).facts.factor == "kv-dtype, slots"


def test_one_differing_fact_is_the_factor_when_none_is_named() -> None:
    a, b = sides()
    facts = compare(a, b).facts
    assert (facts.factor, facts.named, facts.told) == ("kv_dtype", False, True)


def test_capacity_follows_from_a_factor_and_is_none_when_it_differs_too() -> None:
    f16 = build_deployment(kv_dtype=reported("f16", "x"), kv_capacity_tokens=reported(8192, "x"))
    q8 = quantized(kv_capacity_tokens=reported(15_420, "x"))
    facts = compare(view([asked(0)], deployment=f16), view([asked(0)], deployment=q8)).facts
    assert [(item.name, item.role) for item in facts.differing] == [
        ("kv_capacity_tokens", "follows"),
        ("kv_dtype", "factor"),
    ]


def test_an_engine_keeps_its_kv_its_own_way_when_engines_are_compared() -> None:
    """llama.cpp keeps a token in a cell, vLLM in blocks; neither is a choice beside the engine."""
    deployment = build_deployment(engine_version=reported("1", "x"), block_size_tokens=reported(1, "x"))
    other = build_deployment(engine_version=reported("2", "x"), block_size_tokens=reported(128, "x"))
    a, b = (view([asked(0)], deployment=of) for of in (deployment, other))
    assert compare(a, b, factors=("engine",)).facts.named
    with pytest.raises(ConfigurationMismatch, match="block_size_tokens"):
        compare(a, b, factors=("engine-version",))


def test_a_hash_of_the_configuration_says_that_something_differs_and_not_what() -> None:
    """vLLM's build ends in one; another version before it is a difference of its own."""
    builds = [
        build_deployment(engine_build=reported(f"vllm-0.32.0-{end}", "an answer")) for end in ("5625b4fc", "90f0ffee")
    ]
    a, b = (view([asked(0)], deployment=deployment) for deployment in builds)
    facts = compare(a, b, factors=["speculative"]).facts
    assert [(item.name, item.role) for item in facts.differing] == [("engine_build", "follows")]
    assert facts.told
    newer = view([asked(0)], deployment=build_deployment(engine_build=reported("vllm-0.33.0-90f0ffee", "an answer")))
    with pytest.raises(ConfigurationMismatch, match="also in engine_build"):
        compare(a, newer, factors=["speculative"])


def test_what_a_side_does_not_tell_is_said_and_not_refused() -> None:
    silent = build_deployment(kv_dtype=Unknown(reason="not in /props"))
    facts = compare(view([asked(0)], deployment=silent), view([asked(0)], deployment=quantized())).facts
    assert ("kv_dtype", "A", "not in /props") in facts.unknown
    assert facts.factor is None


def test_a_factor_that_no_server_tells_is_refused_when_it_is_no_known_name() -> None:
    a, b = sides()
    with pytest.raises(UsageError, match="--factor colour"):
        compare(a, b, factors=["colour"])
    assert compare(a, b, factors=["kv-dtype", "speculative"]).facts.named


def test_other_questions_are_refused_when_the_proofs_asked_differently() -> None:
    with pytest.raises(ConfigurationMismatch, match="output tokens: A 16, B 64"):
        compare(view([asked(0)]), view([asked(0)], output=64))
    with pytest.raises(EvidenceError, match="no question in common"):
        compare(view([asked(0)]), view([asked(1)]))


# -- ratios -----------------------------------------------------------------------------------------------------------


def test_ratios_are_geometric_means_of_b_over_a_when_pairs_are_held_together() -> None:
    """100 → 50 and 100 → 200 ms: 0.5 and 2, the geometric mean 1. TPOT 10 → 5 ms both times."""
    a = view([asked(0), asked(1)])
    b = view([asked(0, ttft_ms=50, itl_ms=5), asked(1, ttft_ms=200, itl_ms=5)])
    rows = {row.metric: row for row in compare(a, b).rows}
    assert rows["ttft_ratio"].ratio == pytest.approx(1.0)
    assert rows["ttft_ratio"].samples == (0.5, 2.0)
    assert rows["tpot_ratio"].ratio == pytest.approx(0.5)
    assert rows["tpot_ratio"].said is Said.UNDECIDED  # two pairs decide nothing


def test_a_difference_is_named_when_chance_does_not_explain_it() -> None:
    a, b = sides(factor=0.6)
    found = compare(a, b)
    assert said(found, "tpot_ratio") == [Said.LOWER, Said.LOWER]
    assert said(found, "ttft_ratio") == [Said.LOWER, Said.LOWER]
    assert "B's time per output token is lower in 2 of 2 cells" in found.headline
    assert found.in_turns


def test_the_same_is_shown_when_intervals_are_narrow_and_undecided_when_they_are_wide() -> None:
    assert set(said(compare(*sides(jitter=0.05)), "tpot_ratio")) == {Said.SAME}
    assert set(said(compare(*sides(jitter=2.0, n=3)), "tpot_ratio")) == {Said.UNDECIDED}


def test_a_small_difference_is_not_named_when_it_is_below_one_in_twenty() -> None:
    """2 %, and no noise to speak of: significant, and the same for anybody who uses it."""
    assert set(said(compare(*sides(factor=1.02, jitter=0.01)), "ttft_ratio")) == {Said.SAME}


def test_equal_sides_are_told_apart_on_at_most_one_seed_of_twenty() -> None:
    """Noise of 40 % that both share, 8 % of each alone, four comparisons each time."""
    wrong = [
        seed
        for seed in range(20)
        if any(row.said in (Said.HIGHER, Said.LOWER) for row in compare(*sides(jitter=0.4, seed=seed)).rows)
    ]
    assert len(wrong) <= 1


def test_windows_of_a_sweep_are_paired_by_cell_and_round_when_both_have_them() -> None:
    """Two requests of 100 ms, 1 s apart, 16 tokens at 10 ms: 32 tokens in 1 + 0.1 + 0.15 + 0.001 s. B: 20 ms a token,
    0.15 s longer."""

    def swept(itl_ms: float) -> EvidenceView:
        entries: list[tuple[str, Body]] = []
        for round_ in range(3):
            key = f"sweep/512/c2/cold/{round_}"
            cell: dict[str, int | float | str | bool] = {
                "length": 512, "concurrency": 2, "cache": "cold", "round": round_,
            }  # fmt: skip
            for i in range(2):
                timeline = build_timeline(
                    prompt_tokens=512, itl_ns=round(itl_ms * MS), submitted_ns=(100 * round_ + i + 1) * S
                )
                entries.append((f"{key}#1/{i}", build_request("sweep", cell, timeline, planned_ns=S)))
            window = WindowBody(
                probe="sweep", cell=cell, prefix=f"{key}#1/", load={"concurrency": 2}, started_ns=S, ended_ns=2 * S,
                requests=2,
            )  # fmt: skip
            entries.append((key, window))
        return view(entries)

    rows = {row.metric: row for row in compare(swept(10), swept(20)).rows}
    assert rows["tpot_ratio"].cell == "sweep cold, 2 at once"
    assert rows["tpot_ratio"].ratio == pytest.approx(2.0)
    assert rows["output_rate_ratio"].ratio == pytest.approx(1.251 / 1.401)
    assert rows["output_rate_ratio"].n == 3


# -- outcomes and answers ---------------------------------------------------------------------------------------------


def test_outcomes_are_told_apart_by_the_pairs_that_differ() -> None:
    """Seven pairs that A alone completed: two-sided 2 / 2^7 = 0.0156."""
    a = view([asked(i) for i in range(9)])
    b = view([asked(i, refused=i < 7) for i in range(9)])
    found = compare(a, b)
    assert (found.outcomes.both, found.outcomes.only_a, found.outcomes.only_b) == (2, 7, 0)
    assert found.outcomes.p_value == pytest.approx(0.015625)
    assert [item.id for item in found.findings] == ["compare.outcomes_differ"]


def test_answers_are_compared_where_prompts_are_the_same_byte_for_byte() -> None:
    """The first five characters are common: ``the s`` and then ``ame`` or ``un``."""
    a, b = sides(text_b="the sun", n=3, lengths=(512,))
    found = compare(a, b)
    assert (found.outputs.compared, found.outputs.equal, found.outputs.first_difference_chars) == (3, 0, 5)
    assert found.outputs.parted == (512, 5, "ame", "un")
    assert "compare.outputs_differ" in [item.id for item in found.findings]
    other = [(key, replace(body, prompt_sha256="f" * 64)) for key, body in (asked(i) for i in range(3))]
    assert compare(a, view(other, deployment=quantized())).outputs.compared == 0


def test_a_difference_is_the_configurations_when_each_side_repeats_itself() -> None:
    a = view([asked(0), asked(0, arm="again")])
    b = view([asked(0, text="another"), asked(0, arm="again", text="another")])
    found = compare(a, b)
    assert (found.outputs.again_a, found.outputs.again_b, found.outputs.attributable) == ((1, 1), (1, 1), True)
    assert "it is the configurations that differ" in found.findings[0].text
    wavering = view([asked(0, text="another"), asked(0, arm="again", text="a third")])
    assert "does not repeat itself either" in compare(a, wavering).findings[0].text


def test_no_effect_is_asked_about_when_nothing_at_all_changed() -> None:
    quiet = compare(*sides(jitter=0.05))
    assert [item.id for item in quiet.findings] == ["compare.no_effect"]
    assert "was kv_dtype on?" in quiet.findings[0].text
    assert "did nothing here" in quiet.findings[0].text
    assert compare(*sides(factor=0.6)).findings == ()
    assert compare(*sides(jitter=2.0, n=3)).findings == ()  # too noisy to say that nothing changed


def test_speculation_is_told_by_the_engines_counters_when_it_has_them() -> None:
    def counted(drafted: float, accepted: float) -> dict[str, float]:
        names = ("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total")
        return {f'{name}{{engine="0"}}': value for name, value in zip(names, (drafted, accepted), strict=True)}

    key, body = asked(0)
    speculating = replace(
        body, before=build_sample(values=counted(100, 10)), after=build_sample(values=counted(300, 110))
    )
    found = compare(view([asked(0)]), view([(key, speculating)]))
    assert found.a.speculation is None
    assert found.b.speculation is not None
    assert (found.b.speculation.drafted_tokens, found.b.speculation.accepted_share) == (200, 0.5)


# -- requirements -----------------------------------------------------------------------------------------------------


def test_requirements_are_decided_by_the_gates_rules_when_given() -> None:
    a, b = sides(factor=1.2)
    asked_for = {
        "tpot_ratio <= 1.3": "Pass",
        "tpot_ratio@512 <= 1.05": "Fail",
        "ttft_ratio{cell=cold} <= 1.05": "Fail",
        "output_equal >= 99%": "Undecided",  # six of six carry a lower bound of 0.05^(1/6) = 0.61
        "output_equal >= 60%": "Pass",
        "output_rate_ratio >= 1": "Undecided",
    }
    report = gate_comparison(compare(a, b), list(asked_for))
    assert [type(verdict).__name__ for verdict in report.verdicts] == list(asked_for.values())
    assert report.exit_code == 1
