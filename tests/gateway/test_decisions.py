"""The decision log: what is written comes back exactly, and decides the same again."""

from __future__ import annotations

import random
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from longproof.domain.events import EngineSample
from longproof.domain.fleet import ReplicaState
from longproof.domain.kv_event import KvCleared, KvGap, KvRemoved, KvStored, Tier
from longproof.errors import UsageError
from longproof.gateway.decision_codec import LogEntry, LogHeader, decode_entry, decode_header, encode_entry
from longproof.gateway.decisions import DecisionLog, LoggedRouter, records_about, replay_log
from longproof.gateway.recent import RecentDecisions
from longproof.policy.arrivals import Arrival, Ended, EndKind
from longproof.policy.claim_gate import ProvenLimits
from longproof.policy.controller import Controller
from longproof.policy.controller_config import (
    ControllerConfig,
    KvBudget,
    QueueRule,
    SloRule,
    TenantRule,
)
from longproof.policy.decision_record import (
    Arrived,
    CacheChanged,
    DecisionRecord,
    PeersTold,
    Recorded,
    Sampled,
    Ticked,
)
from longproof.policy.peers import FleetUse, ReplicaUse, StageUse, TenantUse
from longproof.policy.routing import RoutingRule
from longproof.testing.controllers import replica_rule

S = 1_000_000_000
CONFIG = ControllerConfig(
    replicas=(
        replica_rule("a", capacity_blocks=60, block_tokens=16, limit_tokens=800),
        replica_rule("b", capacity_blocks=40, block_tokens=16, slots=4),
    ),
    queue=QueueRule(age_bound_ns=2 * S, longest_wait_ns=20 * S, most_waiting=8),
    slo=SloRule(ttft_ns=30 * S),
    tenants=(TenantRule(name="t1", budget=KvBudget(token_seconds_per_s=500, burst_token_seconds=9_000)),),
    proven={"m": ProvenLimits(model="m", claim="c", effective_tokens=700)},
)
HEADER = LogHeader(config=CONFIG, routing=RoutingRule())


class Sink:
    """As much of a log as a router needs."""

    def __init__(self, sink: Callable[[LogEntry], None]) -> None:
        self.sink = sink


def run(seed: int, sink: Callable[[LogEntry], None], steps: int = 400) -> None:
    """Everything a controller can be told, in a random order."""
    router = LoggedRouter(RoutingRule(), Sink(sink))  # type: ignore[arg-type]
    for name in "ab":
        router.follow(name, block_tokens=16, cache_blocks=40, events=name == "a")
    chance = random.Random(seed)
    print(f"seed {seed}")
    recorded, now_ns, alive = Recorded(Controller(CONFIG, router), sink), 0, list[str]()
    for number in range(steps):
        now_ns += chance.randrange(S // 2)
        what = chance.randrange(12)
        one = chance.choice(alive) if alive else "nobody"
        if what < 4:
            alive.append(f"r{number}")
            tokens = chance.choice([20, 100, 300, 900])
            blocks = tuple((2**63 + 7 * i + chance.randrange(3)) % 2**64 for i in range(tokens // 16))
            recorded.on_arrival(
                Arrival(
                    id=f"r{number}",
                    tenant=f"t{number % 3}",
                    model="m",
                    input_tokens=tokens,
                    exact=chance.random() < 0.7,
                    output_tokens=chance.randrange(60),
                    blocks=blocks,
                    deadline_ns=now_ns + 9 * S if chance.random() < 0.2 else None,
                ),
                now_ns,
            )
        elif what == 4:
            recorded.on_counted(one, chance.randrange(300), (), now_ns)
        elif what == 5:
            recorded.on_first_token(one, now_ns)
        elif what == 6:
            recorded.on_output(one, chance.randrange(60), now_ns)
        elif what == 7:
            recorded.on_refused_by_engine(one, chance.choice([None, S]), now_ns)
        elif what == 8 and alive:
            alive.remove(one)
            recorded.on_finish(one, Ended(kind=chance.choice(list(EndKind)), output_tokens=3), now_ns)
        elif what == 9:
            sample = EngineSample(at_ns=now_ns, running=2, waiting=0, kv_usage=chance.random(), values={"x": 0.5})
            recorded.on_sample("a", sample, now_ns)
        elif what == 10:
            event = chance.choice(
                [
                    KvStored(blocks=(2**64 - 1, 5)),
                    KvRemoved(blocks=(5,), tier=Tier.HOST),
                    KvCleared(),
                    KvGap(reason="lost", missed=2),
                ]
            )
            recorded.on_kv_event("a", event, now_ns)
        elif chance.random() < 0.3:
            use = {"a": ReplicaUse(stages={"kv": StageUse(blocks=chance.randrange(40), requests=1)}, decoding=1)}
            spent = TenantUse(spent_token_ms=10 * number, expected_token_ms=chance.randrange(9_000), left_token_ms=-5)
            peers = FleetUse(replicas=use, tenants={"t1": spent})
            recorded.on_peers(peers, chance.choice([1, 3]), now_ns, told=chance.random() < 0.5)
        else:
            recorded.on_replica("b", chance.choice([ReplicaState.UP, ReplicaState.DOWN]), now_ns)
            recorded.on_tick(now_ns)
            router.follow("a", block_tokens=16, cache_blocks=40, events=chance.random() < 0.5)


def log_of(path: Path, seed: int = 1) -> Path:
    log = DecisionLog(path, HEADER, write_every_s=0.001)
    run(seed, log.sink)
    log.close()
    return log.path


@pytest.mark.parametrize("seed", range(4))
def test_a_log_decides_the_same_again(tmp_path: Path, seed: int) -> None:
    found = replay_log(log_of(tmp_path / "decisions.jsonl", seed))
    assert found.same, found.differences[:1]
    assert found.inputs >= 400
    assert min(found.sent, found.waits, found.refused) > 0


def test_every_record_comes_back_exactly(tmp_path: Path) -> None:
    records: list[LogEntry] = []
    run(9, records.append)
    inputs = {type(entry.input) for entry in records if isinstance(entry, DecisionRecord)}
    assert inputs >= {Arrived, CacheChanged, PeersTold, Sampled, Ticked}
    for record in records:
        assert decode_entry(encode_entry(record), where="x") == record


def test_a_sample_is_written_without_what_json_cannot_say() -> None:
    sample = EngineSample(at_ns=1, values={"nan": float("nan"), "inf": float("inf"), "x": 1.0})
    record = DecisionRecord(number=0, at_ns=1, input=Sampled(replica="a", sample=sample), actions=())
    back = decode_entry(encode_entry(record), where="x")
    assert isinstance(back, DecisionRecord)
    assert isinstance(back.input, Sampled)
    assert back.input.sample.values == {"x": 1.0}


def test_a_difference_is_shown_when_the_rules_were_others(tmp_path: Path) -> None:
    path = log_of(tmp_path / "decisions.jsonl")
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first.replace(b'"most_waiting":8', b'"most_waiting":1'), *rest]))
    found = replay_log(path)
    assert found.differing > 0
    assert found.differences[0].replayed != found.differences[0].record.actions
    assert not found.same


def test_a_gap_is_named_when_records_are_missing(tmp_path: Path) -> None:
    path = log_of(tmp_path / "decisions.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(at for at in range(40, len(lines)) if not any(b'["follow"' in line for line in lines[at : at + 3]))
    path.write_bytes(b"".join(lines[:at] + lines[at + 3 :]))
    assert replay_log(path).missing == 3


def test_half_a_last_line_is_left_out_when_the_gateway_was_killed(tmp_path: Path) -> None:
    path = log_of(tmp_path / "decisions.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    found = replay_log(path)
    assert (found.torn, found.same) == (True, True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON"),
        (b"{}\n", "no decision log"),
        (b'{"longproof_decisions": 99}\n', "format 99"),
        (b'{"longproof_decisions": 1, "config": 3}\n', "LogHeader"),
    ],
)
def test_a_file_is_refused_when_it_is_no_log(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        replay_log(tmp_path / "x")


@pytest.mark.parametrize("line", [b"[]\n", b'[0,0,"Nothing",{},[]]\n', b'[0,0,"FirstToken",{},[]]\n', b"7\n"])
def test_a_line_is_refused_when_it_is_no_record(line: bytes) -> None:
    with pytest.raises(UsageError, match=r"line 3"):
        decode_entry(line, where="line 3")


def test_records_are_dropped_and_counted_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DecisionLog(tmp_path / "decisions.jsonl", HEADER, write_every_s=600)
    size = log.path.stat().st_size

    class Full:
        def write(self, data: bytes) -> int:
            return real.write(data[: len(data) // 2])  # a disk that takes half of it

        def fileno(self) -> int:
            return real.fileno()

        def close(self) -> None:
            real.close()

    real = log._file  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(log, "_file", Full())
    run(1, log.sink, steps=20)
    log._write()  # pyright: ignore[reportPrivateUsage] - the thread's turn, at a time of our choosing
    assert log.dropped >= 20
    assert log.path.stat().st_size == size  # no half line
    monkeypatch.setattr(log, "_file", real)
    log.sink(DecisionRecord(number=400, at_ns=1, input=Ticked(), actions=()))
    log.close()
    assert replay_log(log.path).missing == 400


def test_no_file_is_left_when_not_even_the_first_line_fits(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # stands in for a disk that takes a part of it
    try:
        with pytest.raises(UsageError, match="No space left"):
            DecisionLog(tmp_path / "decisions.jsonl", HEADER)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_log_is_never_continued_when_its_name_is_taken(tmp_path: Path) -> None:
    first, second = (log_of(tmp_path / "decisions.jsonl", seed) for seed in (1, 2))
    assert (first.name, second.name) == ("decisions.jsonl", "decisions-2.jsonl")
    assert replay_log(second).same


def rotated(path: Path, seed: int = 1, *, file_bytes: int = 40_000, files: int = 100) -> DecisionLog:
    """A log in many files. The thread writes when it is told to, so that its batches are small."""
    log = DecisionLog(path, HEADER, write_every_s=600, file_bytes=file_bytes, files=files)

    def sink(entry: LogEntry) -> None:
        log.sink(entry)
        log._write()  # pyright: ignore[reportPrivateUsage]

    run(seed, sink)
    log.close()
    return log


def test_a_full_file_becomes_a_part_and_all_parts_replay_in_order(tmp_path: Path) -> None:
    whole = replay_log(log_of(tmp_path / "whole" / "decisions.jsonl"))
    log = rotated(tmp_path / "decisions.jsonl")
    parts = sorted(tmp_path.glob("*.part-*.jsonl"))
    assert len(parts) >= 3
    assert parts[0].name == "decisions.part-0001.jsonl"
    assert all(part.stat().st_size <= 40_000 for part in (*parts, log.path))
    found = replay_log(log.path)
    assert found.same, found.differences[:1]
    assert (found.inputs, found.sent, found.waits) == (whole.inputs, whole.sent, whole.waits)


def test_the_newest_files_are_kept_and_a_replay_says_what_is_gone(tmp_path: Path) -> None:
    log = rotated(tmp_path / "decisions.jsonl", files=3)
    assert len(list(tmp_path.iterdir())) == 3
    assert log.path.exists()
    found = replay_log(log.path)
    assert found.missing > 0
    assert found.inputs > 0
    assert not found.same


def test_earlier_lives_go_first_when_there_are_too_many_files(tmp_path: Path) -> None:
    for seed in range(3):
        rotated(tmp_path / "decisions.jsonl", seed, file_bytes=1 << 30, files=2)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["decisions-2.jsonl", "decisions-3.jsonl"]
    assert rotated(tmp_path / "decisions.jsonl", files=2).path.name == "decisions-4.jsonl"  # no name comes back


def test_a_later_part_knows_how_caches_were_followed(tmp_path: Path) -> None:
    log = rotated(tmp_path / "decisions.jsonl")
    header = decode_header(log.path.read_bytes().splitlines(keepends=True)[0], where="x")
    assert header.part > 1
    assert {one.replica for one in header.followed} == {"a", "b"}


def test_a_file_goes_on_growing_when_no_other_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "no space")

    monkeypatch.setattr(Path, "rename", full)
    log = rotated(tmp_path / "decisions.jsonl", file_bytes=2_000)
    assert [one.name for one in tmp_path.iterdir()] == ["decisions.jsonl"]
    assert log.dropped == 0
    assert replay_log(log.path).same


def test_one_requests_way_is_found_across_parts(tmp_path: Path) -> None:
    log = rotated(tmp_path / "decisions.jsonl", file_bytes=8_000)
    whole = log_of(tmp_path / "whole" / "decisions.jsonl")
    about = list(records_about(log.path, "r1")) or list(records_about(log.path, "r0"))
    assert about
    assert about == (list(records_about(whole, "r1")) or list(records_about(whole, "r0")))


def test_one_requests_way_is_found_in_the_log(tmp_path: Path) -> None:
    path = log_of(tmp_path / "decisions.jsonl")
    some = next(iter(records_about(path, "r1")), None) or next(iter(records_about(path, "r0")))
    assert isinstance(some.input, Arrived)
    about = list(records_about(path, some.input.arrival.id))
    assert about[0] == some
    assert all(record.number > some.number for record in about[1:])


def test_the_ring_keeps_the_newest() -> None:
    recent, records = RecentDecisions(kept=5), list[LogEntry]()
    run(3, records.append, steps=60)
    told = [one for one in records if isinstance(one, DecisionRecord) and isinstance(one.input, Arrived)]
    for record in told:
        assert isinstance(record.input, Arrived)
        recent.add(record.actions[0], record.input.arrival, record.at_ns)
    assert [one.id for one in recent.newest_first()] == [r.actions[0].id for r in reversed(told[-5:])]
    assert {one.verdict for one in recent.newest_first()} <= {"sent", "waits", "refused"}
