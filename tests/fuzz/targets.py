"""Parsers of what others wrote, each as a function of bytes that may only return, or raise what it documents.

`TARGETS` by name. What a fuzzer found lies under `corpus/NAME/` and is replayed as a test.
"""

from __future__ import annotations

import itertools
import math
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import orjson

from longproof.domain.request import Route
from longproof.domain.units import parse_duration_ns, parse_tokens
from longproof.engines.gguf_header import read_gguf_header
from longproof.engines.metrics_text import metric_values
from longproof.engines.sse import SseParser
from longproof.errors import GeometryError, ModelFileError, UsageError
from longproof.gateway.answers import engine_problem, misplaced_error
from longproof.gateway.ask import Ask
from longproof.gateway.body_weight import most_parsed_bytes, widened_bytes
from longproof.gateway.byte_size import parse_bytes
from longproof.gateway.chat_template import ChatTemplate, Uncountable
from longproof.gateway.config import read_config
from longproof.gateway.counting import ModelCounting
from longproof.gateway.decision_codec import decode_entry, decode_header
from longproof.gateway.decisions import replay_log
from longproof.gateway.errors import ApiError
from longproof.gateway.gguf_fields import tokenizer_fields
from longproof.gateway.intake import parsed
from longproof.gateway.keys import KeyRing, KeyRule, key_digest
from longproof.gateway.kv_translate import Translator
from longproof.gateway.kv_wire import read_batch
from longproof.gateway.ledger_journal import read_segment
from longproof.gateway.owner_fields import FieldRule
from longproof.gateway.prefixes import NAME_PATTERN
from longproof.gateway.prompt_text import text_names, text_size
from longproof.gateway.sse_events import EventFlow, error_at_first, is_error_event
from longproof.gateway.template_limits import Budget
from longproof.gateway.tracing import _PARENT
from longproof.gateway.upstream import retry_after_ns
from longproof.gateway.usage import usage_in
from longproof.geometry.gguf import read_gguf

CORPUS = Path(__file__).parent / "corpus"
Target = Callable[[bytes], None]
_RULE = FieldRule(media_hosts=frozenset({"good.example"}))
_TEMPLATE = ChatTemplate(
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}"
    "{% endif %}{% endfor %}{% for t in tools or [] %}{{ t | tojson(indent=2) }}{% endfor %}{{ bos_token }}",
    {"bos_token": "<s>"},
    budget=lambda: Budget(steps=20_000, chars=1 << 20),
)


@contextmanager
def _file(data: bytes, name: str = "input") -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name
        path.write_bytes(data)
        yield path


def body(data: bytes) -> None:
    """Bodies of requests: an Ask with sane numbers that can be bounded, named and sent on, or a 4xx."""
    most_parsed_bytes(data)
    widened_bytes(data)
    for route in Route:
        try:
            ask = parsed(data, route, request_id="1", rule=_RULE)
        except ApiError as refused:
            _require_refusal(refused)
            continue
        assert ask.choices >= 1
        assert ask.output_tokens is None or 0 <= ask.output_tokens <= 2**60
        _bounded(ask)


def _require_refusal(refused: ApiError) -> None:
    assert 400 <= refused.problem.status < 500
    assert orjson.loads(refused.problem.body())["error"]["message"]


def _bounded(ask: Ask) -> None:
    counting = ModelCounting(model=ask.model, block_tokens=16)
    assert counting.bound(ask).input_tokens >= 0
    text_names(ask.route, ask.fields, block_bytes=64, salt=ask.salt)
    size = text_size(ask.route, ask.fields)
    assert size is None or size.size_bytes >= 0
    if ask.route is Route.CHAT:
        with suppress(Uncountable):
            _TEMPLATE.render(ask.fields)
    orjson.dumps({**ask.fields, "cache_salt": "x"})


def template(data: bytes) -> None:
    """Chat templates of model files: rendered within their budget, or refused."""
    source = data.decode("utf-8", "replace")
    try:
        found = ChatTemplate(source, {"bos_token": "<s>"}, budget=lambda: Budget(steps=5_000, chars=1 << 16))
    except ModelFileError:
        return
    with suppress(Uncountable):
        found.render({"messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function"}]})


def events(data: bytes) -> None:
    """An engine's stream on its way through: nothing is lost, added or held for ever, wherever it is cut."""
    for hide in (False, True):
        flow, out, held = EventFlow(hide_usage=hide), b"", 0
        for piece in _pieces(data):
            out += flow.take(piece)
            held = max(held, len(flow._held))
        out += flow.end()
        assert held <= 64 << 10
        assert flow.tokens >= 0
        assert flow.closing(1) is not None or not (flow.done or flow.failed)
        if not hide or b'"usage"' not in data:
            assert data.startswith(out)  # half an event at the end is dropped
            assert len(data) - len(out) <= 64 << 10
        assert len(out) <= len(data)
    usage = usage_in(data)
    if usage is not None:
        assert min(usage.prompt_tokens or 0, usage.completion_tokens or 0, usage.cached_tokens or 0) >= 0
    is_error_event(data)
    misplaced_error(error_at_first(data) or data)
    problem = engine_problem(500, data)
    assert problem is None or orjson.loads(problem.body())["error"]["message"]


def sse(data: bytes) -> None:
    """The prober's parser: the same frames however the bytes are cut."""
    whole, cut = SseParser(), SseParser()
    frames = whole.feed(data) + whole.finish()
    pieces = list(itertools.chain.from_iterable(cut.feed(piece) for piece in _pieces(data)))
    assert pieces + cut.finish() == frames


def _pieces(data: bytes) -> list[bytes]:
    """Cut at places that the data itself names."""
    found, start = list[bytes](), 0
    while start < len(data):
        size = 1 + data[start] % 23
        found.append(data[start : start + size])
        start += size
    return found


def kv_events(data: bytes) -> None:
    """KV events: a batch, or none; what was read can be followed."""
    batch = read_batch(data)
    if batch is None:
        return
    follow = Translator(block_tokens=16, most_blocks=256)
    for event in batch.events:
        for _ in follow.translate(event):
            assert len(follow) <= 1_024


def gguf(data: bytes) -> None:
    """GGUF files, by all three readers."""
    with _file(data, "a.gguf") as path:
        with suppress(ModelFileError):
            read_gguf_header(path)
        with suppress(ModelFileError):
            tokenizer_fields(path)


def gguf_geometry(data: bytes) -> None:
    """GGUF files, by the planner's reader."""
    with _file(data, "a.gguf") as path, suppress(ModelFileError, GeometryError):
        read_gguf(path)


def fleet(data: bytes) -> None:
    """fleet.toml."""
    with _file(data, "fleet.toml") as path, suppress(UsageError):
        read_config(path)


def quantities(data: bytes) -> None:
    """Tokens, durations and sizes as people write them."""
    text = data.decode("utf-8", "replace")
    for parse in (parse_tokens, parse_duration_ns, parse_bytes):
        with suppress(UsageError):
            assert parse(text) >= 0


def headers(data: bytes) -> None:
    """Values of headers, of any bytes."""
    value = data.decode("utf-8", "surrogateescape")
    wait_ns = retry_after_ns(value)
    assert wait_ns is None or 0 <= wait_ns <= 3_600 * 10**9
    ring = KeyRing.of([KeyRule(name="a", digest=key_digest("sk-a"), tenant="t")])
    for given in ([value], [f"Bearer {value}"], [value, value]):
        with suppress(ApiError):
            assert ring.rule_of(given).tenant == "t"
            assert value.strip() in ("sk-a", "Bearer sk-a") or "sk-a" in value
    _PARENT.fullmatch(value)
    if re.fullmatch(NAME_PATTERN, value):
        assert "/" not in value
        assert not value.startswith(".")


def decision_log(data: bytes) -> None:
    """Decision logs: replayed, or refused with their place."""
    with suppress(UsageError):
        decode_header(data, where="a:1")
    with suppress(UsageError):
        decode_entry(data, where="a:1")
    with _file(data, "decisions.jsonl") as path, suppress(UsageError):
        replay_log(path)


def journal(data: bytes) -> None:
    """Segments of the usage journal: rows, and damaged lines counted."""
    with _file(data, "journal-0000000001.jsonl") as path:
        rows, damaged = read_segment(path)
        assert len(rows) + damaged == len([line for line in data.split(b"\n") if line])


def metrics(data: bytes) -> None:
    """Engines' /metrics."""
    for value in metric_values(data.decode("utf-8", "replace")).values():
        assert math.isfinite(value)


TARGETS: dict[str, Target] = {
    "body": body,
    "template": template,
    "events": events,
    "sse": sse,
    "kv_events": kv_events,
    "gguf": gguf,
    "gguf_geometry": gguf_geometry,
    "fleet": fleet,
    "quantities": quantities,
    "headers": headers,
    "decision_log": decision_log,
    "journal": journal,
    "metrics": metrics,
}
