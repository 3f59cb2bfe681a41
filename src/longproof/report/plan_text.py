"""The terminal card of a plan, and of a model's geometry: figures with bands, and what is unknown with its reason."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding

from longproof.domain.measure import Measured, Reading, Unknown, value_or_none
from longproof.domain.units import format_bytes
from longproof.domain.verdict import Admit, Question, Queue
from longproof.geometry.weights import ByteEstimate
from longproof.plan.cost import Band, BandPrice
from longproof.plan.layouts import describe_layout
from longproof.plan.memory import RankMemory
from longproof.plan.perf_estimate import TimeEstimate
from longproof.plan.planner import Plan, RankPlan
from longproof.plan.questions import Answer, Judgement
from longproof.plan.summary import ModelSummary
from longproof.report import plan_json
from longproof.report.blocks import clean, heading, item, pairs, table
from longproof.report.numbers import DASH, number, plural, tokens
from longproof.report.text import show

_NAMES = {Question.LIMIT: "Limit", Question.CAPACITY: "Capacity", Question.LOAD: "Now"}
_GIB = 1 << 30
_NAMED_POOLS = ("swa", "conv", "ssm", "draft_conv", "draft_ssm", "rs_r", "rs_s")
"""Pools whose number means nothing without their name; the others are the tokens' own."""


def render_plan(plan: Plan, *, command: str | None = None) -> Group:
    """The whole card. `command`: the launch command, None = not printed."""
    return Group(*_card(plan, command))


def render_summary(summary: ModelSummary) -> Group:
    """A model's layers by kind, its weights and what its cache takes."""
    return Group(*_geometry(summary))


def print_plan(plan: Plan, *, command: str | None = None, as_json: bool = False) -> None:
    """Puts a plan on standard output, as a card or as JSON."""
    if as_json:
        sys.stdout.write(plan_json.plan_json(plan, command=command) + "\n")
    else:
        show(render_plan(plan, command=command))


def print_summary(summary: ModelSummary, *, as_json: bool = False) -> None:
    """Puts a model's geometry on standard output, as a card or as JSON."""
    if as_json:
        sys.stdout.write(plan_json.summary_json(summary) + "\n")
    else:
        show(render_summary(summary))


def headline(plan: Plan) -> str:
    """The plan in one sentence."""
    size = f"{tokens(plan.request.input_tokens)} + {tokens(plan.request.output_tokens)} tokens"
    if plan.capacity.refusal is not None:
        return f"{plan.launch.engine.value} would refuse this launch: {plan.capacity.refusal.rule}"
    if isinstance(plan.judgement, Unknown):
        return f"Undecided for a request of {size}: {plan.judgement.reason}"
    verdict = plan.judgement.value.verdict
    if isinstance(verdict, Admit):
        at_once = value_or_none(plan.at_once)
        return f"A request of {size} fits" + ("" if at_once is None else f"; {at_once:,} of them at once")
    if isinstance(verdict, Queue):
        return f"A request of {size} fits an idle server, not this load: it waits"
    return f"A request of {size} does not fit"


def _card(plan: Plan, command: str | None) -> Iterator[RenderableType]:
    yield clean(headline(plan))
    yield clean("")
    yield pairs(list(_who(plan)))
    yield from _memory(plan)
    yield from _answers(plan)
    yield from _engine_says(plan)
    yield from _time(plan)
    yield from _price(plan)
    if isinstance(plan.mix, Measured):
        yield heading(f"Mix: {plural(plan.mix.value.sessions, 'session')} together")
        yield from (item("", sentence) for sentence in plan.mix.value.explanation)
    if plan.unknowns:
        yield heading("Unknown")
        yield from (item("○", sentence) for sentence in plan.unknowns)
    if plan.notes:
        yield heading("Notes")
        yield from (item("", note, style="dim") for note in plan.notes)
    if command:
        yield heading("Launch")
        yield clean(command)


def _who(plan: Plan) -> Iterator[tuple[str, str]]:
    model, launch = plan.model, plan.launch
    size = value_or_none(model.parameters)
    yield "Model", model.name + (f", {size / 1e9:,.3g} B parameters" if size else "") + f" ({_kinds(model)})"
    version = launch.version or "rules of the newest release known"
    yield "Engine", f"{launch.engine.value} ({version}), {describe_layout(launch.layout)}, KV {launch.kv_dtype}"
    yield "Device", plan.device or "not named"
    yield "Limit", "none" if plan.rule.limit_tokens is None else f"{tokens(plan.rule.limit_tokens)} tokens"
    yield "KV growth", f"{model.growth_bytes_per_token:,.0f} B per token over all layers, in {model.kv_dtype}"


def _kinds(model: ModelSummary) -> str:
    return ", ".join(f"{count.layers} {count.kind}" for count in model.kinds)


def _memory(plan: Plan) -> Iterator[RenderableType]:
    yield heading("Memory of one rank in GiB, by stage")
    grid = table("stage", "ranks", "layers", "weights", "workspace", "KV cache", "pool", "request", right=True)
    for rank, alike in _grouped(plan.ranks):
        grid.add_row(
            f"{rank.stage}",
            f"{alike}",
            f"{rank.first_layer}–{rank.last_layer - 1}",
            _estimate(rank.weights),
            _workspace(rank.memory),
            _estimate(rank.available),
            _pools(rank),
            _takes(plan, rank),
        )
    yield grid
    binding = plan.capacity.binding
    if binding is not None and len({rank.stage for rank in plan.ranks}) > 1:
        stage = plan.capacity.stages[binding]
        yield item("", f"Stage {stage.stage} rank {stage.rank} decides.", style="dim")
    if plan.capacity.refusal is not None:
        yield item("REFUSED", plan.capacity.refusal.sentence, style="bold red")


def _grouped(ranks: Sequence[RankPlan]) -> list[tuple[RankPlan, int]]:
    """Ranks of a stage that are alike, once, with their number."""
    found: list[tuple[RankPlan, int]] = []
    for rank in ranks:
        if found and found[-1][0].stage == rank.stage and _same(found[-1][0], rank):
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((rank, 1))
    return found


def _same(one: RankPlan, other: RankPlan) -> bool:
    return (one.available, one.pools) == (other.available, other.pools)


def _estimate(reading: Reading[ByteEstimate], unit: str = "") -> str:
    """``15.0`` GiB where exact, ``54.9 ± 1.2`` where estimated."""
    if isinstance(reading, Unknown):
        return DASH
    value = reading.value
    width = max(value.high_bytes - value.best_bytes, value.best_bytes - value.low_bytes) / _GIB
    digits = 3 if value.best_bytes < _GIB else 1
    text = f"{value.best_bytes / _GIB:,.{digits}f}"
    return f"{text}{unit}" if width < 0.05 else f"{text} ± {width:,.1f}{unit}"


def _workspace(memory: RankMemory | None) -> str:
    if memory is None:
        return DASH
    sizes = [
        term.amount.value.best_bytes
        for term in memory.terms
        if term.name != "weights" and isinstance(term.amount, Measured)
    ]
    return f"{sum(sizes) / _GIB:,.1f}"


def _pools(rank: RankPlan) -> str:
    """``28,112 blocks``; several pools with their names. Parts of one size (a key and an indexer) show once."""
    parts: list[str] = []
    for pool in rank.pools:
        unit = pool.unit if pool.unit.endswith("s") else f"{pool.unit}s"
        text = f"{pool.units:,} {unit}"
        if not any(part.startswith(text) for part in parts):
            parts.append(f"{text} ({pool.name})" if pool.name in _NAMED_POOLS else text)
    return ", ".join(parts) or DASH


def _takes(plan: Plan, rank: RankPlan) -> str:
    """What the asked request takes of this stage, in its pool's units."""
    if isinstance(plan.judgement, Unknown):
        return DASH
    checks = plan.judgement.value.answer(Question.CAPACITY).checks
    mine = [check for check in checks if check.where.partition(" ")[0] == str(rank.stage)]
    return ", ".join(f"{check.needed:,}" for check in mine) or DASH


def _answers(plan: Plan) -> Iterator[RenderableType]:
    size = f"{tokens(plan.request.input_tokens)} input and {tokens(plan.request.output_tokens)} output tokens"
    yield heading(f"One request of {size}")
    if isinstance(plan.judgement, Unknown):
        yield item("UNDECIDED", plan.judgement.reason, style="yellow")
        return
    judgement: Judgement = plan.judgement.value
    for answer in judgement.answers:
        yield item(
            "yes" if answer.fits else "NO ", f"{_NAMES[answer.question]}: {answer.sentence}", style=_style(answer)
        )
        if answer.change is not None:
            change = answer.change
            yield Padding(
                item(
                    "change", f"{change.name} from {tokens(change.current)} to {tokens(change.wanted)} {change.unit}",
                    style="bold",
                ),
                (0, 0, 0, 4),
            )  # fmt: skip
    if isinstance(plan.at_once, Measured):
        yield item("", f"{plural(plan.at_once.value, 'such request')} at once.", style="dim")


def _style(answer: Answer) -> str:
    return "green" if answer.fits else "bold red"


def _engine_says(plan: Plan) -> Iterator[RenderableType]:
    report, capacity = plan.capacity.report, plan.capacity
    if report.tokens is None and report.blocks is None:
        return
    yield heading("What the engine will print, and what it holds")
    printed = [
        f"{report.tokens:,} tokens" if report.tokens is not None else "",
        f"{report.blocks:,} blocks" if report.blocks is not None else "",
        f"{report.concurrency:,.2f}x at {capacity.need.request_tokens:,}" if report.concurrency is not None else "",
    ]
    rows = [("Prints", ", ".join(part for part in printed if part))]
    if isinstance(capacity.concurrency, Measured) and isinstance(capacity.tokens, Measured):
        held = f"{capacity.tokens.value:,} tokens in {capacity.concurrency.value:,.2f} requests of the whole limit"
        rows.append(("Holds", held))
    longest = value_or_none(capacity.longest_request_tokens)
    if longest is not None:
        rows.append(("Longest", f"{longest:,} tokens in one request, were the limit no bound"))
    yield pairs(rows)
    if report.misleading:
        yield item("MISLEADING", report.misleading, style="yellow")


def _time(plan: Plan) -> Iterator[RenderableType]:
    if isinstance(plan.speeds, Unknown):
        return
    speeds = plan.speeds.value
    yield heading("Time, before queueing and network")
    rows = [
        ("Prefill", f"{_span(speeds.prefill)} for {tokens(plan.request.input_tokens)} tokens, cold and alone"),
        ("Decode", f"{_span(speeds.decode_alone)} per token alone"),
    ]
    if speeds.decode_full is not None and speeds.sequences:
        rows.append(("", f"{_span(speeds.decode_full)} per token and request with {speeds.sequences:,} at once"))
    yield pairs(rows)
    yield from (item("", f"{note}.", style="dim") for note in dict.fromkeys((*speeds.prefill.notes,)))


def _span(estimate: TimeEstimate) -> str:
    return f"{number(estimate.seconds, 's')} ({number(estimate.low, 's')} to {number(estimate.high, 's')})"


def _price(plan: Plan) -> Iterator[RenderableType]:
    if isinstance(plan.prices, Unknown):
        return
    yield heading("USD per million tokens at full load, by context (typical, low to high)")
    grid = table("context", "input, cold", "output", "sessions", "GB·s per request", right=True)
    for band in plan.prices.value:
        grid.add_row(*_price_cells(band))
    yield grid
    yield item("", plan.prices.source, style="dim")


def _price_cells(band: BandPrice) -> tuple[str, ...]:
    if isinstance(band.prices, Unknown):
        return band.name, DASH, DASH, DASH, DASH
    prices = band.prices.value
    return (
        band.name,
        _money(prices.input_cold),
        _money(prices.output),
        f"{prices.sessions:,}",
        number(prices.residency_gigabyte_seconds, ""),
    )


def _money(band: Band) -> str:
    return f"{band.typical:,.3g} ({band.low:,.3g}–{band.high:,.3g})"


def _geometry(summary: ModelSummary) -> Iterator[RenderableType]:
    yield clean(summary.name)
    yield clean("")
    total, active = value_or_none(summary.parameters), value_or_none(summary.active_parameters)
    rows = [
        ("Architecture", summary.architecture or "not named"),
        ("Read from", summary.source),
        ("Layers", f"{summary.layers}: {_kinds(summary)}" + _drafts(summary)),
    ]
    if total is not None:
        share = "" if active is None or active == total else f", {active / 1e9:,.3g} B active"
        rows.append(("Parameters", f"{total:,}{share}"))
    rows.append(("Weights", _weights(summary)))
    window = summary.trained_window_tokens
    rows.append(("Window", f"{window.value:,} tokens" if isinstance(window, Measured) else f"unknown: {window.reason}"))
    rows.append(("KV growth", f"{summary.growth_bytes_per_token:,.0f} B per token, in {summary.kv_dtype}"))
    if summary.state_bytes:
        rows.append(("State", f"{format_bytes(summary.state_bytes)} per sequence, whatever its length"))
    yield pairs(rows)
    if summary.cache:
        yield heading("Cache of one sequence, all layers, before an engine rounds it")
        grid = table("tokens", "bytes", "", right=True)
        for at in summary.cache:
            grid.add_row(f"{at.tokens:,}", f"{at.cache_bytes:,}", format_bytes(at.cache_bytes))
        yield grid
    if summary.notes:
        yield heading("Notes")
        yield from (item("", note, style="dim") for note in summary.notes)


def _drafts(summary: ModelSummary) -> str:
    return f"; {plural(summary.draft_layers, 'draft layer')}" if summary.draft_layers else ""


def _weights(summary: ModelSummary) -> str:
    weights = summary.weights
    return (
        f"unknown: {weights.reason}"
        if isinstance(weights, Unknown)
        else f"{_estimate(weights, ' GiB')} ({weights.source})"
    )
