"""Progress of a proof on a terminal: one line that moves, on stderr. Without a terminal: one line per probe."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from longproof.domain.units import format_ns, format_tokens
from longproof.evidence.records import Header, RequestBody, WindowBody
from longproof.prove.cost import cost_of, step_cost
from longproof.prove.options import DROP_ORDER
from longproof.prove.run import Estimate


class TerminalWatcher:
    """Draws what the proof reports. The bar counts tokens against the estimate; a boundary search may go beyond it."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False)
        self._progress = Progress(
            TextColumn("{task.fields[probe]:<11}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[what]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task: TaskID | None = None
        self._probe = ""

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def planned(self, header: Header, directory: Path, *, resumed: bool) -> None:
        protocol = header.protocol
        cost = cost_of(protocol)
        self._task = self._progress.add_task("", total=float(cost.all_tokens), probe="", what="")
        self._console.print("going on with:" if resumed else "begun:")
        for step in protocol.steps:
            own = step_cost(step, protocol.output_tokens)
            under_load = f", {format_ns(own.window_ns)} under load" if own.window_ns else ""
            self._console.print(
                f"  {step.probe:<12} about {own.requests} requests, {format_tokens(own.all_tokens)} tokens{under_load}"
            )
        if protocol.budget_ns is not None or protocol.budget_tokens is not None:
            planned = {step.probe for step in protocol.steps}
            order = ", ".join(probe for probe in DROP_ORDER if probe in planned)
            self._console.print(
                f"  what the budget does not hold is left out in this order: {order}"
                if order
                else "  where the budget ends, the rounds that are left are not asked"
            )

    def estimated(self, estimate: Estimate) -> None:
        if self._task is not None:
            self._progress.update(self._task, total=float(estimate.cost.all_tokens))
        for probe, reason in estimate.dropped.items():
            self._console.print(f"left out: {probe}, {reason}")
        if estimate.ns:
            self._console.print(
                f"estimate: {format_ns(estimate.ns)} at the speed of a short prompt; long prompts are slower per token"
            )

    def step(self, probe: str, what: str) -> None:
        if probe != self._probe:
            self._probe = probe
            if not self._console.is_terminal:
                self._console.print(f"{probe} …")
        if self._task is not None:
            self._progress.update(self._task, probe=probe, what=what[:60])

    def finished(self, key: str, body: RequestBody) -> None:
        if self._task is not None:
            produced = body.timeline.usage.completion_tokens if body.timeline.usage is not None else None
            answered = body.timeline.first_token_ns is not None
            self._progress.advance(
                self._task, float((body.timeline.prompt_tokens_sent or 0) + (produced or 0)) if answered else 0.0
            )

    def window_ended(self, key: str, body: WindowBody) -> None:
        """Nothing to draw: its requests were."""
