"""The claim by length."""

from __future__ import annotations

from longproof.claim.derive import claim_of
from longproof.report import lengths
from longproof.report.numbers import DASH, sample_size
from longproof.testing.builders import build_request, build_timeline, build_view
from longproof.testing.scenarios import full, refused


def _table(times_ms: list[float]) -> lengths.Table:
    view = build_view(
        *(
            build_request(
                "speed",
                {"arm": "cold", "length": 512, "repeat": i},
                build_timeline(prompt_tokens=512, ttft_ns=round(ms * 1e6)),
            )
            for i, ms in enumerate(times_ms)
        )
    )
    return lengths.table(claim_of(view), "speed", lengths.SPEED)


def _cell(table: lengths.Table, metric: str) -> lengths.Cell:
    at = table.column(metric)
    assert at is not None
    return table.rows[0].cells[at]


def test_row_has_mean_and_interval_when_repeated() -> None:
    # mean 110 ms, s = 10 ms, n = 3: t(0.975, 2) = 4.3027, half width 4.3027 × 10 / √3 = 24.84
    table = _table([100, 110, 120])
    assert _cell(table, "ttft") == lengths.Cell(value="110 ms", spread="[85, 135]")
    assert table.rows[0].n == 3


def test_row_says_n_is_1_when_asked_once() -> None:
    assert _cell(_table([100]), "ttft") == lengths.Cell(value="100 ms", spread=sample_size(1))


def test_p95_has_no_column_when_n_is_too_small() -> None:
    table = _table([100.0] * 58)
    assert table.column("ttft_p95") is None
    assert any("p95" in note and "59" in note for note in table.notes)


def test_p95_is_the_largest_of_59_when_n_just_allows_it() -> None:
    # 0.95^59 < 0.05: with 59 samples the largest bounds the p95 at 95 %
    table = _table([100.0 + i for i in range(59)])
    assert _cell(table, "ttft_p95").value == "158 ms"
    assert not any("p95" in note for note in table.notes)


def test_refused_lengths_have_dashes_and_a_reason_when_listed() -> None:
    table = lengths.table(claim_of(refused()), "speed", lengths.SPEED)
    at = table.column("ttft")
    assert at is not None
    assert [row.cells[at].value for row in table.rows] == [DASH, DASH]
    assert any("At 512, 1,024 tokens no time to first token" in note for note in table.notes)


def test_warm_rows_keep_arms_apart_when_read() -> None:
    row = lengths.warmth(full())[0]
    assert row.tokens == 512
    assert [arm.name for arm in row.arms] == ["cold", "again", "new_tail"]
    assert [arm.cached_text for arm in row.arms] == ["0", "511", "448"]  # 512 − 1, 512 × 7 / 8


def test_range_names_the_unit_once_when_both_ends_share_it() -> None:
    assert lengths.Arm(name="again", ttft_s=(1.4, 1.49), cached_tokens=(1, 1)).range_text == "1.40 to 1.49 s"
    assert lengths.Arm(name="again", ttft_s=(0.9, 1.2), cached_tokens=(1, 1)).range_text == "900 ms to 1.20 s"
    assert lengths.Arm(name="again", ttft_s=(0.9,), cached_tokens=(1,)).range_text == "900 ms"


def test_cached_says_so_when_the_server_does_not_report() -> None:
    assert lengths.Arm(name="again", ttft_s=(1, 1), cached_tokens=(None, None)).cached_text == "not reported"
    assert lengths.Arm(name="again", ttft_s=(1, 1), cached_tokens=(5, None)).cached_text == "not always reported"
