"""How a turn of `gateway_protection.py` went, without the gateway and with it, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from real_vllm import Seen

USAGE, PREEMPTIONS = "vllm:kv_cache_usage_perc", "vllm:num_preemptions_total"


class Turn(Protocol):
    """What is drawn of one arm."""

    arm: str
    seen: list[Seen]
    samples: list[dict[str, float]]


def plot(
    turns: Sequence[Turn],
    found: Mapping[str, Mapping[str, object]],
    file: Path,
    *,
    replicas: int,
    target: float,
) -> None:
    """One column without the gateway, one with: time per token and to the first of each chat, KV usage, giants. Lines
    at `target` times what idle chats have at p99."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    idle = found["idle"]["tpot_ms"]["p99"][0]  # type: ignore[index]
    shown = {arm: next(turn for turn in turns if turn.arm == arm) for arm in ("without", "with")}
    end = max(s.ended_s for turn in shown.values() for s in turn.seen)
    figure = Figure(figsize=(9.2, 6.8), layout="constrained")
    axes = figure.subplots(4, 2, sharex=True, sharey="row", height_ratios=(3, 2, 2, 1.6))
    for column, (arm, turn) in enumerate(shown.items()):
        pace, wait, usage, rows = (row[column] for row in axes)
        done = [s for s in turn.seen if s.kind == "chat" and s.done and len(s.at) > 1]
        pace.scatter([s.at[0] for s in done], [s.tpot_s * 1e3 for s in done], s=12, color="#1f6fb4", linewidths=0)
        wait.scatter([s.sent_s for s in done], [s.ttft_s for s in done], s=12, color="#1f6fb4", linewidths=0)
        pace.axhline(target * idle, color="#a33", linewidth=1, linestyle="--")
        pace.set_yscale("log")
        pace.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        pace.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        pace.yaxis.set_minor_formatter(NullFormatter())
        every = found[arm]
        of = "" if replicas == 1 else ", two replicas" if arm == "without" else ", one replica for the long"
        pace.set_title(f"{arm} the gateway{of}\n{every['preemptions']} preemptions in all turns", fontsize=10)
        usage.plot([r["at_s"] for r in turn.samples], [100 * r[USAGE] for r in turn.samples], color="#1f6fb4")
        moments = zip(turn.samples, turn.samples[1:], strict=False)
        moves = [b["at_s"] for a, b in moments if b[PREEMPTIONS] > a[PREEMPTIONS]]
        usage.scatter(moves, [104] * len(moves), marker="v", s=16, color="#a33", clip_on=False, linewidths=0)
        usage.set_ylim(0, 110)
        for place, one in enumerate(s for s in turn.seen if s.kind == "giant"):
            first = one.at[0] if one.at else one.ended_s
            rows.barh(place, first - one.sent_s, left=one.sent_s, color="#e0a64a", height=0.7)
            rows.barh(place, one.ended_s - first, left=first, color="#7a5195", height=0.7)
        rows.set_xlabel("seconds")
        rows.set_xlim(0, end)
        rows.set_yticks([])
        for ax in (pace, wait, usage, rows):
            ax.spines[["top", "right"]].set_visible(False)
            ax.grid(axis="y", color="#ddd", linewidth=0.6)
            ax.set_axisbelow(True)
    axes[1][0].set_ylim(bottom=0)  # both columns': set before the second is drawn, it would cut that off
    axes[0][0].set_ylabel("chats: ms per\noutput token")
    axes[0][0].annotate(
        f"{target} × p99 of idle", (end, target * idle), ha="right", va="bottom", fontsize=8, color="#a33"
    )
    axes[1][0].set_ylabel("chats: s to the\nfirst token")
    axes[2][0].set_ylabel("vLLM's KV pool, %\n▾ preemption")
    axes[3][0].set_ylabel("giants\n(orange: to the\nfirst token)")
    figure.savefig(file, dpi=150, metadata={"Date": None} if str(file).endswith(".svg") else None)
