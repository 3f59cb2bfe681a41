"""The real gateway in front of real processes, while things go wrong: does every request end once, is every token on
the books once, and is nothing left behind?

    python benchmarks/gateway_chaos.py [--seeds N] [--minutes M] [--first-seed S] [--faults NAME,…] [--embedded]
                                       [--keep] [--json | --markdown]

`longproof serve` runs as a process of its own before three lying engines, each a process of its own too (and with
`--embedded` a real llama.cpp, started by the gateway). Clients of all kinds ask without a pause while a fault is
injected; then they stop, and a gateway at rest must hold nothing. Faults come in an order drawn from the seed, each as
often as the time allows. At the end of a seed the three accounts are held against each other: what clients got, what
engines made (written by each engine itself), and what the gateway's usage ledger and decision logs say.

The table has one line per fault and one per law. Exit code 1 when any law was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import math
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from chaos.clients import Clients
from chaos.faults import EMBEDDED, FAULTS, Fault, Stage, nothing
from chaos.laws import LAWS, Books, credited, leaks, read_books
from chaos.processes import Disk, Engine, Gateway, WallClock
from chaos.truth import Truth, generations_in

WIDTH = 14
"""Clients that ask at the same time."""
REST_S = 8.0
OUTCOMES = ("completed", "left", "error", "refused", "broken", "unreached", "silent", "garbled")


@dataclass(slots=True, kw_only=True)
class Run:
    """What one seed gave. `broken` by law; `leaked` by fault."""

    seed: int
    episodes: list[str] = field(default_factory=list[str])
    outcomes: dict[str, collections.Counter[str]] = field(default_factory=dict[str, collections.Counter[str]])
    codes: dict[str, collections.Counter[str]] = field(default_factory=dict[str, collections.Counter[str]])
    broken: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    leaked: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    rest_s: dict[str, float] = field(default_factory=dict[str, float])
    restarts_s: list[float] = field(default_factory=list[float])
    descriptors: tuple[int, int] = (0, 0)
    tokens: dict[str, int] = field(default_factory=dict[str, int])
    feeds: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    credit: dict[str, tuple[int, int, int]] = field(default_factory=dict[str, tuple[int, int, int]])
    """By where it came from: tokens taken as cached, those of them that were not, those cached and not known of."""
    requests: int = 0
    kills: int = 0
    disk: str = ""
    clock: bool = False
    tracebacks: int = 0


async def at_rest(stage: Stage) -> tuple[list[str], float]:
    """Waits until the gateway holds nothing; what it still holds after `REST_S`, and how long it took."""
    began_s, found = time.monotonic(), ["not asked"]
    while found and time.monotonic() - began_s < REST_S:
        try:
            figures = await asyncio.to_thread(stage.gateway.figures)
            clients, half_closed = await asyncio.to_thread(stage.gateway.sockets)
            cached = {engine.name: await asyncio.to_thread(engine.tell) for engine in stage.engines}
            found = list(leaks(figures, clients, half_closed, cached))
        except OSError as problem:
            found = [f"it does not answer: {problem}"]
        if found:
            await asyncio.sleep(0.1)
    return found, time.monotonic() - began_s


async def episode(stage: Stage, fault: Fault) -> tuple[list[str], float]:
    """Load, fault, load, rest."""
    over = asyncio.Event()
    asking = [asyncio.create_task(stage.clients.ask_until(over)) for _ in range(WIDTH)]
    try:
        await asyncio.sleep(0.5 + stage.rng.random())
        await fault(stage)
        await asyncio.sleep(1.0)
    finally:
        over.set()
        await asyncio.gather(*asking)
    return await at_rest(stage)


async def one_seed(seed: int, seconds: float, faults: tuple[Fault, ...], *, embedded: bool, keep: bool) -> Run:
    """One fleet, until its time is over."""
    rng, run = random.Random(seed), Run(seed=seed)
    directory = Path(tempfile.mkdtemp(prefix="gateway-chaos-"))
    engines = [Engine(f"r{i}", directory, seed * 10 + i) for i in range(3)]
    # a run writes some 5 MiB of decision log a minute
    disk, clock = Disk(directory / "state", mib=48 + int(seconds / 6)), WallClock(directory)
    gateway = Gateway(engines, directory, disk, clock, embedded=embedded)
    run.disk, run.clock = disk.how, clock.there
    truth = Truth()
    try:
        for engine in engines:
            engine.start()
        gateway.start()
        async with Clients(gateway.url, rng) as clients:
            truth.asked = clients.asked
            stage = Stage(
                engines=engines,
                gateway=gateway,
                disk=disk,
                clock=clock,
                clients=clients,
                kills=truth.kills,
                feeds=truth.feeds,
                rng=rng,
                embedded=embedded,
                restarts_s=run.restarts_s,
            )
            if embedded:
                clients.other_model = await asyncio.to_thread(gateway.embedded_model)
            await _episodes(stage, run, seconds, faults)
        gateway.drain()
        for engine in engines:
            truth.generations += generations_in(engine.truth, engine.name)
        books = read_books(truth, disk.path)
        for law in LAWS:
            run.broken[law.__name__] = list(law(books))
        _count(run, books)
        run.tracebacks = gateway.log().count("Traceback (most recent call last)")
    finally:
        for engine in engines:
            engine.kill()
        gateway.kill()
        if keep:
            asked = "".join(f"{json.dumps(asdict(one))}\n" for one in truth.asked)
            (directory / "clients.jsonl").write_text(asked)
            shutil.copytree(disk.path, directory / "state-kept")
            print(f"kept in {directory}", file=sys.stderr)
        disk.leave()
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    return run


async def _episodes(stage: Stage, run: Run, seconds: float, faults: tuple[Fault, ...]) -> None:
    end_s = time.monotonic() + seconds
    waiting: list[Fault] = []
    first = await _descriptors(stage)
    while time.monotonic() < end_s:
        if not waiting:
            waiting = stage.rng.sample(faults, len(faults))
        fault = waiting.pop()
        name = fault.__name__
        if not stage.clock.there and name.startswith("clock"):
            continue
        stage.clients.episode = len(run.episodes)
        run.episodes.append(name)
        found, took_s = await episode(stage, fault)
        run.leaked.setdefault(name, []).extend(found)
        run.rest_s[name] = max(run.rest_s.get(name, 0.0), took_s)
        print(
            f"seed {run.seed}: {len(run.episodes):>3} {name:<18} {len(stage.clients.asked)} requests", file=sys.stderr
        )
    run.descriptors = first, await _descriptors(stage)


async def _descriptors(stage: Stage) -> int:
    await asyncio.sleep(4.0)  # idle connections to engines close after three seconds
    return psutil.Process(stage.gateway.pid).num_fds()


def _count(run: Run, books: Books) -> None:
    run.requests, run.kills = len(books.truth.asked), len(books.truth.kills)
    for asked in books.truth.asked:
        name = run.episodes[asked.episode]
        run.outcomes.setdefault(name, collections.Counter())[asked.outcome] += 1
        if asked.code and asked.outcome in ("error", "refused"):
            run.codes.setdefault(name, collections.Counter())[asked.code] += 1
    run.feeds = [asdict(feed) for feed in books.truth.feeds]
    run.credit = {"by events": credited(books, fed=True), "by a guess": credited(books, fed=False)}
    run.tokens = {
        **_not_booked(books),
        "made by engines": sum(made.output_tokens for made in books.truth.generations),
        "on the books": sum(end.output_tokens for _, end in books.settled),
        "of them completed": sum(end.output_tokens for _, end in books.settled if end.ending == "completed"),
        "whole answers of the embedded engine": sum(
            intent.replica == "embedded" and end.ending == "completed" for intent, end in books.settled
        ),
        "requests interrupted by a kill": sum(end.ending == "interrupted" for _, end in books.settled),
        "generations cut by a kill": sum(made.ending is None for made in books.truth.generations),
    }


def _not_booked(books: Books) -> dict[str, int]:
    """Tokens that engines made and that are not on the books, by what hid them."""
    missing = collections.Counter[str]()
    for asked in books.truth.asked:
        rows, generations = books.rows(asked), books.of_number.get(asked.number, [])
        if any(made.ending is None for made in generations):
            continue  # its engine was killed: what it had made is not known
        made = sum(made.output_tokens for made in generations)
        booked = sum(end.output_tokens for intent, end in rows if intent.replica != "embedded")
        ending = next((end.ending for _, end in rows if end.ending != "rejected"), "rejected")
        missing[f"{ending}, {'streamed' if asked.streamed else 'plain'}"] += made - booked
    return {f"made and not booked: {name}": count for name, count in sorted(missing.items()) if count}


def table(runs: list[Run]) -> str:
    """For people."""
    lines = [
        f"seeds {', '.join(str(run.seed) for run in runs)}; disk: {runs[0].disk}; clock moved: {runs[0].clock}",
        "",
    ]
    head = f"{'fault':<18} {'times':>5} {'requests':>8} " + " ".join(f"{word:>9}" for word in OUTCOMES)
    lines.append(f"{head} {'rest s':>7} {'held':>5}  what errors and refusals said")
    for name in dict.fromkeys(name for run in runs for name in sorted(set(run.episodes), key=_place)):
        outcomes = sum((run.outcomes.get(name, collections.Counter()) for run in runs), collections.Counter[str]())
        codes = sum((run.codes.get(name, collections.Counter()) for run in runs), collections.Counter[str]())
        row = f"{name:<18} {sum(run.episodes.count(name) for run in runs):>5} {outcomes.total():>8} "
        row += " ".join(f"{outcomes[word]:>9}" for word in OUTCOMES)
        row += f" {max(run.rest_s.get(name, 0.0) for run in runs):>7.1f}"
        row += f" {sum(len(run.leaked.get(name, ())) for run in runs):>5}"
        lines.append(f"{row}  {', '.join(f'{count} {code}' for code, count in codes.most_common(4))}")
    lines += ["", f"{'law':<42} {'broken':>6}"]
    for law in LAWS:
        found = [text for run in runs for text in run.broken.get(law.__name__, ())]
        lines += [f"{law.__name__.replace('_', ' '):<42} {len(found):>6}", *(f"    {text}" for text in found[:5])]
    held = [text for run in runs for texts in run.leaked.values() for text in texts]
    lines += [f"{'nothing is held at rest':<42} {len(held):>6}", *(f"    {text}" for text in held[:5]), ""]
    lines += [f"{'events of an engine that came back with another …':<52} {'times':>5} {'told s':>7} {'well s':>7}"]
    for what, times, told_s, well_s in _feeds(runs):
        lines.append(f"{what:<52} {times:>5} {told_s:>7} {well_s:>7}")
    for how, (known, over, under) in _credit(runs).items():
        lines.append(f"taken as cached {how}, tokens: {known}; not so: {over}; cached and not known of: {under}")
    lines.append("")
    for word in dict.fromkeys(word for run in runs for word in run.tokens):
        lines.append(f"{word:<42} {sum(run.tokens.get(word, 0) for run in runs):>9}")
    restarts = [took_s for run in runs for took_s in run.restarts_s]
    if restarts:
        lines.append(f"{'start after a kill, longest, s':<42} {max(restarts):>9.2f}")
    lines.append(
        f"{'descriptors, first and last':<42} {', '.join(f'{a} {b}' for a, b in (r.descriptors for r in runs)):>9}"
    )
    lines.append(f"{'tracebacks in the log of the gateway':<42} {sum(run.tracebacks for run in runs):>9}")
    return "\n".join(lines)


def _feeds(runs: list[Run]) -> Iterator[tuple[str, int, str, str]]:
    """What was wrong, how often, and the longest until it was told and until all was well again, in seconds."""
    feeds = [feed for run in runs for feed in run.feeds]
    for what in dict.fromkeys(feed["what"] for feed in feeds):
        mine = [feed for feed in feeds if feed["what"] == what]
        told = [_seconds(feed["at_ns"], feed["told_ns"]) for feed in mine]
        well = [_seconds(feed["mended_ns"], feed["well_ns"]) for feed in mine]
        yield what, len(mine), f"{max(told):.1f}", f"{max(well):.1f}"


def _seconds(began_ns: int, ended_ns: int | None) -> float:
    return math.inf if ended_ns is None else (ended_ns - began_ns) / 1e9


def _credit(runs: list[Run]) -> dict[str, tuple[int, ...]]:
    sources = dict.fromkeys(how for run in runs for how in run.credit)
    return {how: tuple(map(sum, zip(*(run.credit[how] for run in runs if run.credit), strict=True))) for how in sources}


def markdown(runs: list[Run]) -> str:
    """For docs/reliability.md."""
    faults = sum(len(run.episodes) for run in runs)
    outcomes = sum((count for run in runs for count in run.outcomes.values()), collections.Counter[str]())
    words = collections.Counter[str]()
    for run in runs:
        words.update(run.tokens)
    missing = sum(count for word, count in words.items() if word.startswith("made and not booked"))
    wrong = sum(len(found) for run in runs for found in (*run.broken.values(), *run.leaked.values()))
    feeds = list(_feeds(runs))
    known, over, _ = _credit(runs)["by events"]
    share = f" ({over / known:.1%})" if known else ""
    told, well = (max((float(feed[at]) for feed in feeds), default=math.nan) for at in (2, 3))
    rows = [
        ("seeds; faults; kills", f"{', '.join(str(run.seed) for run in runs)}; {faults}; {sum(r.kills for r in runs)}"),
        ("requests; of them while the gateway was away", f"{outcomes.total():,}; {outcomes['unreached']:,}"),
        ("laws broken, and things held at rest", f"{wrong}"),
        ("longest until at rest, s", f"{max(max(run.rest_s.values()) for run in runs):.1f}"),
        ("tokens made by engines; of them not on the books", f"{words['made by engines']:,}; {missing:,}"),
        ("tokens that an index fed by events took as cached; of them not so", f"{known:,}; {over:,}{share}"),
        ("wrong events: times; longest until told; until well again, s", _times(feeds, told, well)),
        ("longest start after a kill, s", f"{max((s for r in runs for s in r.restarts_s), default=math.nan):.1f}"),
        ("descriptors before and after", "; ".join(f"{a} and {b}" for a, b in (run.descriptors for run in runs))),
        ("tracebacks in the gateway's log", f"{sum(run.tracebacks for run in runs)}"),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _times(feeds: list[tuple[str, int, str, str]], told_s: float, well_s: float) -> str:
    return f"{sum(feed[1] for feed in feeds)}; {told_s:.1f}; {well_s:.1f}"


def _place(name: str) -> int:
    return [fault.__name__ for fault in (*FAULTS, *EMBEDDED)].index(name)


def as_json(runs: list[Run]) -> dict[str, Any]:
    """For machines."""
    return {"runs": [{name: getattr(run, name) for name in Run.__dataclass_fields__} for run in runs]}


def broken(runs: Iterable[Run]) -> bool:
    """Whether any law was."""
    return any(any(run.broken.values()) or any(run.leaked.values()) or run.tracebacks for run in runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=20_261_130)
    parser.add_argument("--minutes", type=float, default=4.0, help="of each seed")
    parser.add_argument("--faults", default="", help="only these, by name")
    parser.add_argument("--embedded", action="store_true", help="a real llama.cpp is one of the replicas")
    parser.add_argument("--keep", action="store_true", help="leave the directory, for a look into it")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", action="store_true", help="the table of docs/reliability.md")
    options = parser.parse_args()
    known = (*FAULTS, *EMBEDDED) if options.embedded else FAULTS
    wanted = options.faults.split(",") if options.faults else [fault.__name__ for fault in known]
    faults = tuple(fault for fault in known if fault.__name__ in wanted)
    if len(faults) != len(wanted):
        parser.error(f"known faults: {', '.join(fault.__name__ for fault in known)}")
    runs: list[Run] = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        print(f"seed {seed}", file=sys.stderr)
        work = one_seed(seed, options.minutes * 60, faults or (nothing,), embedded=options.embedded, keep=options.keep)
        runs.append(asyncio.run(work))
    if options.json:
        print(json.dumps(as_json(runs), indent=1))
    else:
        print(table(runs), *(["", markdown(runs)] if options.markdown else []), sep="\n")
    return int(broken(runs))


if __name__ == "__main__":
    sys.exit(main())
