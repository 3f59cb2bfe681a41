"""Reads what `probe/accounting` asked: counts, truncation, clamping, and the edge in the server's own words."""

from __future__ import annotations

from collections.abc import Iterator

from longproof.claim.findings.canaries import PLACES, canaries, places
from longproof.claim.findings.reading import PROVEN_COUNTS, far_apart
from longproof.claim.findings.words import told
from longproof.claim.statements import Finding, NotShown, Severity, Standing, Statement
from longproof.claim.view import EvidenceView
from longproof.domain.events import RequestTimeline
from longproof.domain.measure import Measured, Provenance, Unknown
from longproof.domain.outcome import Outcome, classify, tokens_produced
from longproof.domain.outcome_words import in_words
from longproof.domain.request import CountSource
from longproof.domain.units import format_tokens
from longproof.evidence.records import RequestBody

PROBE = "accounting"


def read(view: EvidenceView) -> Iterator[Statement | Finding | NotShown]:
    """All that accounting's records support."""
    yield from _template(view)
    yield from _counts(view)
    yield from _output(view)
    yield from canaries(view)
    yield from _edge(view)


def _template(view: EvidenceView) -> Iterator[Statement]:
    for key, body in view.counts(PROBE):
        if body.cell.get("arm") != "template":
            continue
        count = body.count
        if count is None:
            value: Measured[float] | Unknown = Unknown(reason=body.error or "the server did not count")
            text = f"How many tokens the chat template adds is unknown: {body.error}."
        else:
            value = Measured(value=float(count.template), provenance=Provenance.REPORTED, source=count.how)
            special = "" if count.special is None else f", {count.special} of them special tokens"
            text = f"The chat template adds {count.template} tokens to a one-message chat{special}."
        yield Statement(
            id="accounting.template_tokens",
            metric="template_tokens",
            text=text,
            standing=Standing.NOT_SHOWN if count is None else Standing.SHOWN,
            unit="tokens",
            value=value,
            n=0 if count is None else 1,
            evidence=(key,),
        )


def _counts(view: EvidenceView) -> Iterator[Statement | Finding | NotShown]:
    """Every answered request of every probe with a count of ours: sent against used."""
    agree: list[str] = []
    differ: list[tuple[str, RequestBody, int, int]] = []
    silent: list[str] = []
    unproven: list[str] = []
    local: list[tuple[str, int, int]] = []
    for key, body in view.all_requests():
        timeline = body.timeline
        if timeline.first_token_ns is None:
            continue
        used = timeline.usage.prompt_tokens if timeline.usage is not None else None
        if used is None:
            if timeline.finish_reason is not None:
                silent.append(key)
        elif timeline.prompt_tokens_sent is None:
            continue
        elif timeline.count_source is CountSource.LOCAL_TOKENIZER and not _far_below(timeline.prompt_tokens_sent, used):
            local.append((key, timeline.prompt_tokens_sent, used))
        elif timeline.count_source not in PROVEN_COUNTS and not far_apart(timeline.prompt_tokens_sent, used):
            unproven.append(key)
        elif used == timeline.prompt_tokens_sent:
            agree.append(key)
        else:
            differ.append((key, body, timeline.prompt_tokens_sent, used))
    proven = [key for key, body, *_ in differ if body.timeline.count_source in PROVEN_COUNTS]
    yield from _agreement(agree, proven)
    if silent:
        yield Finding(
            id="accounting.usage_missing",
            severity=Severity.CAUTION,
            text=(
                f"{len(silent)} completed answers carried no usage, although it was asked for: what was billed or"
                " read is unknown."
            ),
            evidence=tuple(silent),
        )
    if unproven and not agree and not proven:
        yield NotShown(
            topic="independent_count",
            text=(
                "No independent count of the prompts: the server counts for nobody but itself, so sent = used"
                " was not checked."
            ),
            how="give --tokenizer with the model's tokenizer.json",
        )
    yield from _by_local_tokenizer(local)
    if differ:
        yield _differing(view, differ)


def _far_below(sent: int, used: int) -> bool:
    """A local tokenizer that is not the server's can be wrong either way; usage far below it may be a cut as well."""
    return used < sent and far_apart(sent, used)


def _by_local_tokenizer(counted: list[tuple[str, int, int]]) -> Iterator[Statement | Finding]:
    """Sent against used by a tokenizer on our side: a weaker witness, and named as one."""
    if not counted:
        return
    apart = [item for item in counted if item[1] != item[2]]
    yield Statement(
        id="accounting.usage_agreement.local",
        metric="usage_agreement",
        text=(
            f"The server's usage equalled the count of the local tokenizer in {len(counted) - len(apart)} of"
            f" {len(counted)} answered requests."
        ),
        standing=Standing.NOT_SHOWN if apart else Standing.SHOWN,
        unit="fraction",
        value=Measured(
            value=(len(counted) - len(apart)) / len(counted),
            provenance=Provenance.MEASURED,
            source="usage.prompt_tokens = tokens by the local tokenizer",
        ),
        n=len(counted),
        conditions={"counted_by": "local tokenizer"},
        evidence=tuple(item[0] for item in counted),
    )
    if apart:
        _, sent, used = apart[0]
        yield Finding(
            id="accounting.local_count_differs",
            severity=Severity.CAUTION,
            text=(
                f"{len(apart)} of {len(counted)} answers count other tokens than the local tokenizer ({sent} against"
                f" {used} told, first of them): it is not the server's tokenizer, or usage is wrong."
            ),
            evidence=tuple(item[0] for item in apart),
        )


def _agreement(agree: list[str], differ: list[str]) -> Iterator[Statement]:
    total = len(agree) + len(differ)
    if not total:
        return
    yield Statement(
        id="accounting.usage_agreement",
        metric="usage_agreement",
        text=f"The server's usage equalled our count in {len(agree)} of {total} answered requests.",
        standing=Standing.SHOWN if not differ else Standing.REFUTED,
        unit="fraction",
        value=Measured(
            value=len(agree) / total, provenance=Provenance.MEASURED, source="usage.prompt_tokens = tokens sent"
        ),
        n=total,
        evidence=tuple(agree + differ),
    )


def _differing(view: EvidenceView, differ: list[tuple[str, RequestBody, int, int]]) -> Finding:
    """Fewer used than sent is truncation unless the places were demonstrably read; anything else is wrong
    bookkeeping."""
    key, body, sent, used = max(differ, key=lambda item: item[2])
    unread, read_places = places(view)
    shorter = all(used_ < sent_ for _, _, sent_, used_ in differ)
    details = {"sent": str(sent), "used": str(used)}
    evidence = tuple(item[0] for item in differ)
    many = f"{len(differ)} such answers, largest named"
    proven = body.timeline.count_source in PROVEN_COUNTS
    about = "" if proven else "about "
    words = f"Sent {about}{format_tokens(sent)} tokens, usage says {format_tokens(used)} ({many})"
    if shorter and not unread and len(read_places) < len(PLACES):
        return Finding(
            id="accounting.input_truncated",
            severity=Severity.FAULT,
            text=f"{words}: the prompt was cut without an error, at a place the canaries could not tell.",
            evidence=evidence,
            details=details,
        )
    because = "although head, middle and tail were all read" if len(read_places) == len(PLACES) else "with no error"
    if unread:
        because = f"and the {' and '.join(sorted(unread))} was not read"
    return Finding(
        id="accounting.usage_wrong",
        severity=Severity.FAULT,
        text=f"{words}, {because}.",
        evidence=evidence,
        details={**details, "key": key},
    )


def _output(view: EvidenceView) -> Iterator[Finding]:
    """Output against what was asked: cut although there was room, more than asked, or more chunks than usage admits."""
    short: list[tuple[str, RequestTimeline, int]] = []
    over: list[tuple[str, RequestTimeline, int]] = []
    understated: list[tuple[str, RequestTimeline, int]] = []
    limit = view.limit_tokens() or _most_held(view)
    for key, body in view.all_requests():
        timeline = body.timeline
        produced = tokens_produced(timeline)
        if timeline.usage is None or timeline.usage.completion_tokens is None or produced is None:
            continue
        if produced > timeline.usage.completion_tokens:
            understated.append((key, timeline, timeline.usage.completion_tokens))
        if produced > timeline.max_tokens:
            over.append((key, timeline, produced))
        elif _ended_early(body, produced) and _had_room(timeline, limit):
            short.append((key, timeline, produced))
    if short:
        key, timeline, produced = short[0]
        yield Finding(
            id="accounting.output_clamped",
            severity=Severity.FAULT,
            text=(
                f"{len(short)} answers ended early (finish_reason {timeline.finish_reason}):"
                f" {timeline.max_tokens} tokens asked, {produced} given, at a prompt of {timeline.prompt_tokens_sent}"
                " tokens that left room for all of them."
            ),
            evidence=tuple(item[0] for item in short),
            details={"asked": str(timeline.max_tokens), "given": str(produced)},
        )
    if over:
        key, timeline, produced = over[0]
        yield Finding(
            id="accounting.output_overrun",
            severity=Severity.FAULT,
            text=f"{len(over)} answers have more output than asked for: {timeline.max_tokens} asked, {produced} told.",
            evidence=tuple(item[0] for item in over),
        )
    if understated:
        key, timeline, told_tokens = understated[0]
        yield Finding(
            id="accounting.output_usage_wrong",
            severity=Severity.FAULT,
            text=(
                f"{len(understated)} answers had more chunks with content than usage has output tokens:"
                f" {len(timeline.chunks)} chunks, {told_tokens} tokens told."
            ),
            evidence=tuple(item[0] for item in understated),
        )


def _most_held(view: EvidenceView) -> int | None:
    """Where the server tells no limit: the most tokens, prompt and output, that it held in one answer show that a
    shorter prompt left room."""
    totals = [
        (body.timeline.prompt_tokens_sent or 0) + (tokens_produced(body.timeline) or 0)
        for _, body in view.all_requests()
        if classify(body.timeline) in (Outcome.COMPLETED, Outcome.SHORT)
    ]
    return max(totals, default=None)


def _ended_early(body: RequestBody, produced: int) -> bool:
    """Cut by length, or stopped although the engine was told not to stop."""
    stopped = body.exact_output and body.timeline.finish_reason == "stop" and produced < body.timeline.max_tokens
    return classify(body.timeline) is Outcome.SHORT or stopped


def _had_room(timeline: RequestTimeline, limit: int | None) -> bool:
    sent = timeline.prompt_tokens_sent
    return limit is not None and sent is not None and sent + timeline.max_tokens <= limit


def _edge(view: EvidenceView) -> Iterator[Statement | NotShown]:
    seen = False
    for key, body in view.requests(PROBE):
        if body.cell.get("arm") != "edge":
            continue
        seen = True
        timeline, prompt, asked = body.timeline, int(body.cell["prompt"]), int(body.cell["output"])
        outcome = classify(timeline)
        produced = timeline.usage.completion_tokens if timeline.usage is not None else None
        position = str(body.cell["position"])
        unknown = Unknown(reason=f"the request was {in_words(outcome)}")
        yield Statement(
            id=f"accounting.edge.{position}",
            metric="clamp_tokens" if outcome in (Outcome.SHORT, Outcome.COMPLETED) else "edge",
            text=(
                f"A prompt of {format_tokens(prompt)} tokens ({position}) asking for {asked}:"
                f" {told(timeline, produced)}"
            ),
            standing=Standing.SHOWN,
            unit="tokens",
            value=unknown
            if produced is None
            else Measured(value=float(produced), provenance=Provenance.REPORTED, source="usage.completion_tokens"),
            n=1,
            at_tokens=prompt,
            conditions={"position": position, "outcome": in_words(outcome)},
            evidence=(key,),
        )
    if not seen:
        yield NotShown(
            topic="edge",
            text="What happens at the very limit (one token below, at, above, far above) was not asked.",
            how="prove the whole window (leave out --context) on a server that tells its limit",
        )
