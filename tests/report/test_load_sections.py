"""The sections of load: there when there is evidence, drawn from what was measured, small, inert, equal each time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from longproof.claim.derive import claim_of
from longproof.claim.statements import Standing
from longproof.claim.view import EvidenceView
from longproof.evidence.records import Record, RequestBody, SamplesBody
from longproof.report import busy_figures, lifecycle_figures, load_figures, over_time_figures, sweep_figures, waiting
from longproof.report.figures import Figure
from longproof.report.html import render_html
from longproof.report.timelines import waiting_reasons, window_figure
from longproof.testing.builders import build_sample, build_view
from longproof.testing.scenarios import HOSTILE, full
from longproof.testing.scenarios_load import LOAD_SCENARIOS, asked, bare, loaded, many, rejected, samples, window

SECTIONS = ["busy", "reclaim", "restart", "disaggregated", "conversation", "sweep", "sustained", "overload"]


def _html(view: EvidenceView) -> str:
    return render_html(claim_of(view), view)


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """Every scenario of load as a page."""
    return {name: _html(make()) for name, make in LOAD_SCENARIOS.items()}


def _by_title(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.title: figure for figure in figures}


def test_every_probe_of_load_has_a_section_in_the_contents_when_it_ran(pages: dict[str, str]) -> None:
    sections = re.findall(r'<section id="([a-z]+)"', pages["loaded"])
    contents = re.findall(r'<a href="#([a-z-]+)">', pages["loaded"].split("</nav>")[0].split("<nav")[1])
    assert [name for name in sections if name in SECTIONS] == SECTIONS
    assert [name for name in contents if name in SECTIONS] == SECTIONS
    assert set(contents) <= set(re.findall(r'<section id="([a-z-]+)"', pages["loaded"]))


def test_no_section_of_load_stands_when_no_probe_of_load_ran() -> None:
    html = _html(full())
    assert not set(re.findall(r'id="([a-z]+)"', html)) & set(SECTIONS)
    assert "waiting unknown" not in html  # an idle server has no queue to ask about


def test_page_has_the_same_bytes_when_load_is_drawn_twice(pages: dict[str, str]) -> None:
    assert _html(loaded()) == pages["loaded"]


def test_ids_are_unique_and_links_have_targets_when_load_is_drawn(pages: dict[str, str]) -> None:
    for html in pages.values():
        ids = re.findall(r' id="([^"]+)"', html)
        assert len(ids) == len(set(ids))
        assert set(re.findall(r'<a href="#([^"]+)"', html)) <= set(ids)


def test_every_drawing_says_its_numbers_when_read_aloud(pages: dict[str, str]) -> None:
    drawings = re.findall(r'<svg class="plot".*?</svg>', pages["loaded"], re.DOTALL)
    told = [re.search(r"<desc[^>]*>(.*?)</desc>", drawing, re.DOTALL) for drawing in drawings]
    assert len(drawings) > 25
    assert all(found is not None and re.search(r"\d", found[1]) for found in told)


def test_page_stays_small_when_there_are_ten_thousand_requests(pages: dict[str, str]) -> None:
    """100 windows of 100 requests: 10,000 requests, 100 samples; of these 10,100 records 400 stand in the table, and
    those that statements link to."""
    assert len(pages["many"]) < 1_000_000
    left_out = re.search(r"([\d,]+) further records of windows under load that nothing here links to", pages["many"])
    assert left_out is not None
    assert 9_500 < int(left_out[1].replace(",", "")) <= 9_700


def test_hostile_words_are_text_when_a_load_is_refused_with_them(pages: dict[str, str]) -> None:
    assert "&lt;script&gt;document.title" in pages["bare"]
    assert "<script>document" not in pages["bare"]
    assert "\x1b" not in pages["bare"]
    assert "\u202e" not in pages["bare"]
    assert HOSTILE not in pages["bare"]


def test_missing_gauges_are_said_when_the_engine_gave_no_metrics(pages: dict[str, str]) -> None:
    assert "Nothing is known of the engine meanwhile: it gave no metrics." in pages["bare"]
    assert "KV pool in use" not in pages["bare"]


def test_few_statements_speak_for_all_when_there_are_hundreds() -> None:
    view = loaded()
    parts = {part.id: part for part in load_figures.parts(claim_of(view), view)}
    assert parts["sweep"].total > 200
    assert all(len(part.statements) <= 8 for part in parts.values())
    assert any(item.metric == "overload_peak" for item in parts["overload"].statements)


def test_refuted_statements_come_first_when_few_are_chosen() -> None:
    claim = claim_of(loaded())
    items = [item for item in claim.statements if item.id.startswith("sweep.")]
    last = replace(items[-1], standing=Standing.REFUTED)
    assert load_figures.telling([*items[:-1], last])[0] is last


def test_change_point_is_marked_when_times_doubled() -> None:
    figures = _by_title(list(over_time_figures.sustained(loaded())))
    slower = figures["Time to first token, short prompts"]
    assert [line.text for line in slower.legend] == ["change point"]
    assert "from window 13 on" in slower.caption  # 12 windows at the old pace
    assert "steadily from window to window" in figures["Memory of the engine"].caption
    assert {"KV floor", "Memory of the engine"} <= set(figures)


def test_no_change_is_marked_when_nothing_changed() -> None:
    figures = _by_title(list(over_time_figures.sustained(many())))
    steady = figures["Time to first token, short prompts"]
    assert steady.legend == ()
    assert "No rise beyond chance" in steady.caption


def test_drift_stands_beside_the_phases_when_busy_is_drawn() -> None:
    view = loaded()
    figures = _by_title(list(busy_figures.busy(claim_of(view), view)))
    first = figures["Time to first token of the short ones"]
    assert "over that before them" in first.caption
    assert [line.text.split(" (")[0] for line in first.legend] == [
        "before",
        "during its prefill",
        "during its decode",
        "after",
    ]
    assert len({line.glyph for line in first.legend}) == 4


def test_preemption_and_reason_are_told_when_the_engine_shows_them() -> None:
    view = loaded()
    drawn = _by_title(list(busy_figures.busy(claim_of(view), view)))["With the long request"]
    assert "Why requests waited, by the engine: capacity." in drawn.caption
    assert "1 preemption." in drawn.caption
    assert "preemption seen" in [line.text for line in drawn.legend]


def test_restart_shows_both_sides_and_what_moved_when_it_was_compared() -> None:
    figures = list(lifecycle_figures.restart(loaded()))
    assert [figure.title for figure in figures] == ["Before and after the restart", "After the restart, over before"]
    assert "TTFT 4,000 sent again: moved: 1.5" in figures[1].svg
    assert figures[1].svg.count("moved: ") == 2  # drawn once, told once


def test_time_is_split_by_side_when_a_pair_answered() -> None:
    (figure,) = lifecycle_figures.disaggregated(loaded())
    assert re.search(
        r"12,000 tokens, n.=.3: prefill side 3\.\d+ s, handover to the first token \d+ ms, decode", figure.svg
    )


def test_goodput_is_mapped_only_when_an_slo_was_given() -> None:
    claim = claim_of(loaded())
    with_slo = [figure.title for figure in sweep_figures.sweep(claim)]
    kept = tuple(item for item in claim.statements if item.metric not in ("sweep_goodput", "sweep_slo_attainment"))
    without = [figure.title for figure in sweep_figures.sweep(replace(claim, statements=kept))]
    assert "Goodput: requests a second within the SLO, cold" in with_slo
    assert with_slo[: len(without)] == without
    assert len(with_slo) - len(without) == 4  # two metrics, cold and known prefix


def test_cell_is_a_dash_when_it_was_not_measured() -> None:
    figure = next(iter(sweep_figures.sweep(claim_of(loaded()))))
    assert "A dash was not measured." in figure.caption  # 12,000 tokens, 16 at a time
    assert ">–<" in figure.svg


def test_later_turns_stand_beside_a_cold_reading_when_a_conversation_is_drawn() -> None:
    view = loaded()
    figures = _by_title(list(over_time_figures.conversation(claim_of(view), view)))
    assert "all of it cold" in [line.text for line in figures["Turn by turn"].legend]
    assert "cached, by the server" in figures["What was new in each turn"].svg


def test_one_request_is_drawn_when_it_is_alone() -> None:
    entries = window("busy", "busy/x", {"phase": "during"}, {}, [({"role": "long"}, asked(1, 0.5))], (1.0, 3.0))
    drawn = window_figure(build_view(*entries).windows("busy")[0], name="x", title="One")
    assert drawn is not None
    assert drawn.caption.startswith("1 request.")


def test_nothing_is_drawn_when_a_window_is_empty() -> None:
    entries = window("busy", "busy/x", {"phase": "during"}, {}, [], (1.0, 3.0))
    assert window_figure(build_view(*entries).windows("busy")[0], name="x", title="None") is None


def test_reasons_are_listed_once_when_many_samples_give_them() -> None:
    name = 'vllm:num_requests_waiting_by_reason{{engine="0",reason="{}"}}'
    seen = [
        build_sample(values={name.format("capacity"): 1.0, name.format("deferred"): 0.0}),
        build_sample(values={name.format("capacity"): 2.0, name.format("deferred"): 1.0}),
    ]
    assert waiting_reasons(seen) == ("capacity", "deferred")


def test_waiting_is_counted_by_what_the_gauge_said_when_requests_had_no_token() -> None:
    """Samples every 0.25 s from 0 s on, somebody waiting before 1 s. Sent at 0.1 s with a token at 0.6 s: two samples
    with a queue. At 1.1 s until 1.6 s: two without. At 2.01 s until 2.06 s: no sample at all. The refused one is none
    of them."""
    sent = [
        ({"role": "short"}, asked(0.1, 0.5)),
        ({"role": "short"}, asked(1.1, 0.5)),
        ({"role": "short"}, asked(2.01, 0.05)),
        ({"role": "short"}, rejected(0.3)),
    ]
    seen = samples((0.0, 3.0), lambda at: (1, int(at < 1), 0.1, 0))
    view = build_view(*window("busy", "busy/x", {}, {}, [(dict(cell), item) for cell, item in sent], (0.0, 3.0), seen))
    assert waiting.waited(view) == waiting.Waited(met_a_queue=1, no_queue=1, not_known=1)


def test_waiting_is_unknown_when_no_gauge_was_sampled() -> None:
    view = loaded()
    silent = [record for record in view.records if not isinstance(record.body, SamplesBody)]
    found = waiting.waited(replace(view, records=tuple(silent)))
    assert found is not None
    assert (found.met_a_queue, found.no_queue) == (0, 0)
    assert found.not_known > 500
    html = _html(bare())
    assert "waiting unknown" in html


def _all_rejected(record: Record) -> Record | None:
    """Everything was refused for load."""
    if not isinstance(record.body, RequestBody):
        return record
    timeline = rejected(record.body.timeline.submitted_ns / 1e9)
    return replace(record, body=replace(record.body, timeline=timeline, left_ns=None))


def _without_gauges(record: Record) -> Record | None:
    return None if isinstance(record.body, SamplesBody) else record


def _without_usage(record: Record) -> Record | None:
    if not isinstance(record.body, RequestBody):
        return record
    return replace(record, body=replace(record.body, timeline=replace(record.body.timeline, usage=None)))


@pytest.mark.parametrize("poorer", [_all_rejected, _without_gauges, _without_usage])
def test_report_is_whole_when_evidence_is_poor(poorer: Callable[[Record], Record | None]) -> None:
    view = loaded()
    kept = tuple(found for record in view.records if (found := poorer(record)) is not None)
    html = _html(replace(view, records=kept))
    assert [name for name in re.findall(r'<section id="([a-z]+)"', html) if name in SECTIONS] == SECTIONS
    assert "nan" not in re.sub(r"[a-z]*nan[a-z]+|[a-z]+nan[a-z]*", "", html.lower())
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
