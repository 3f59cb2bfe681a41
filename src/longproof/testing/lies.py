"""The lies the engine can tell. One dataclass each; any number of them can be combined in a Behaviour.

Every lie has `above_tokens` (only requests with more prompt tokens), `skip` (let that many matching requests pass
first) and `times` (then only that many).

| name              | what the server does                                                                    |
|-------------------|-----------------------------------------------------------------------------------------|
| truncate_input    | reads only `keep_tokens` of a longer prompt: its `head`, `middle` or `tail` is lost     |
| clamp_output      | ends after `tokens` although there is room; finish_reason `length` or `stop`            |
| wrong_usage       | usage is scaled and shifted                                                             |
| no_usage          | no usage and no timings                                                                 |
| wrong_count       | the token count endpoints are off by `offset`                                           |
| false_cached      | reports `fraction` of the prompt as cached, whatever was                                |
| hide_cached       | serves from the cache and reports 0 cached tokens                                       |
| ignore_cold       | uses the cache although the request forbids it                                          |
| hang              | takes the request and never answers; headers `never` or `at_once`; /health stays 200    |
| error_in_stream   | 200, `after_tokens` tokens, then an error object inside the stream                      |
| cut_stream        | closes the connection after `after_tokens`: `between` events, `in_event`, `in_utf8`     |
| no_done           | never sends [DONE]                                                                      |
| role_early        | sends the role-only chunk at once, long before the first token                          |
| keep_alive        | sends a comment line every `every_s` while it prefills                                  |
| empty_answer      | 200, not one token, finish_reason `finish`                                              |
| finish_with       | ends after `after_tokens` with a finish_reason of its own (`abort`)                     |
| refuse            | answers `status` (429, 503, 500 …), with Retry-After, the body in the form asked for    |
| html_answer       | 200 with an HTML page                                                                   |
| crash             | drops every connection and stops listening, at once or after `after_tokens` tokens      |
| crlf_lines        | event stream with CRLF line ends                                                        |
| split_utf8        | splits characters of several bytes between two writes                                   |
| reasoning_first   | the first `tokens` tokens are reasoning, in `field`                                     |
| slow_headers      | waits `delay_s` before the response's headers                                           |
| slow_prefill      | adds `delay_s` to the prefill                                                           |
| stall_stream      | pauses `for_s` after `after_tokens` tokens                                              |
| big_chunks        | sends `tokens` tokens per chunk: chunks are not tokens                                  |
| ignore_disconnect | goes on computing, and holds its slot, when the client has left                         |
| claim_window      | reports a window of `tokens` that it does not have                                      |

Those that show only under load, over time, after a restart or between two engines (`lies_of_load`):

| lie of load                | what the server does                                                           |
|----------------------------|--------------------------------------------------------------------------------|
| leak_kv                    | keeps `blocks` of the KV pool for ever, `on` each cancel, finish or both       |
| slow_cancel                | gives back what a cancelled request held `for_s` later                         |
| lost_abort_counter         | counts cancelled requests nowhere                                              |
| stale_gauges               | shows a frozen KV usage                                                        |
| starve_short               | lets nobody else progress while a prompt `above_tokens` is prefilled           |
| starve_long                | lets a prompt `above_tokens` wait for as long as there are others              |
| admit_then_hang            | sends the role chunk, counts it as running, never sends a token                |
| degrade                    | gets slower with every request, or all at once `after_s`                       |
| leak_memory                | grows by `bytes` with every request                                            |
| slow_recovery              | stays slow for `for_s` after an overload                                       |
| thrash                     | takes a request's blocks away every `every_tokens`, and computes it again      |
| no_retry_after             | refuses above `limit` requests with 503 and no Retry-After                     |
| busy_in_stream             | refuses above `limit` requests inside a 200 stream                             |
| restart_changes            | is another engine after a restart: window, KV pool, cache, speed               |
| pd_bootstrap_fail          | (decode side) cannot reach the prefill side's KV, and says so `after_s`        |
| pd_transfer_slow           | (decode side) loads the KV `factor` times slower                               |
| pd_recompute               | (decode side) claims a transfer and computes the prompt again                  |
| spec_decode_output_changes | answers otherwise when it speculates                                           |
| warm_damage                | answers wrongly when `cached_tokens` came from the cache                       |
| wrong_when_busy            | gives a request the answer to another one's prompt                             |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from longproof.testing.lie import Lie
from longproof.testing.lies_of_load import LIES_OF_LOAD

BodyForm: TypeAlias = Literal["own", "openai", "text", "html", "list", "string", "empty"]
"""How an error body looks: the dialect's own, OpenAI's, plain text, HTML, a JSON list, a JSON string, or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncateInput(Lie):
    """Reads `keep_tokens` of a longer prompt. `usage` reports the tokens that were `read` or those that were `sent`.
    The last `spare_tail_tokens` of the prompt always survive (a server that cuts the document but keeps the
    question)."""

    name: ClassVar[str] = "truncate_input"
    keep_tokens: int = 256
    lose: Literal["head", "middle", "tail"] = "head"
    usage: Literal["read", "sent"] = "read"
    spare_tail_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampOutput(Lie):
    name: ClassVar[str] = "clamp_output"
    tokens: int = 2
    finish: Literal["length", "stop"] = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongUsage(Lie):
    """Each reported count is round(true x scale) + offset, never below 0."""

    name: ClassVar[str] = "wrong_usage"
    prompt_scale: float = 1.0
    prompt_offset: int = 0
    completion_scale: float = 1.0
    completion_offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NoUsage(Lie):
    name: ClassVar[str] = "no_usage"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongCount(Lie):
    name: ClassVar[str] = "wrong_count"
    offset: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseCached(Lie):
    name: ClassVar[str] = "false_cached"
    fraction: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class HideCached(Lie):
    """`in_metrics`: the metrics hide it too."""

    name: ClassVar[str] = "hide_cached"
    in_metrics: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoreCold(Lie):
    name: ClassVar[str] = "ignore_cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang(Lie):
    name: ClassVar[str] = "hang"
    headers: Literal["never", "at_once"] = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInStream(Lie):
    """`form`: ``data`` is a plain data event, ``event`` an event named error. `then_done`: [DONE] follows, as in
    vLLM."""

    name: ClassVar[str] = "error_in_stream"
    after_tokens: int = 0
    message: str = "CUDA out of memory while decoding"
    form: Literal["data", "event"] = "data"
    then_done: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CutStream(Lie):
    name: ClassVar[str] = "cut_stream"
    after_tokens: int = 3
    where: Literal["between", "in_event", "in_utf8"] = "between"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoDone(Lie):
    name: ClassVar[str] = "no_done"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleEarly(Lie):
    """`content` of the role-only chunk: null, an empty string, or no such field."""

    name: ClassVar[str] = "role_early"
    content: Literal["null", "empty", "absent"] = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAlive(Lie):
    name: ClassVar[str] = "keep_alive"
    every_s: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyAnswer(Lie):
    name: ClassVar[str] = "empty_answer"
    finish: str = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishWith(Lie):
    name: ClassVar[str] = "finish_with"
    reason: str = "abort"
    after_tokens: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse(Lie):
    name: ClassVar[str] = "refuse"
    status: int = 429
    retry_after_s: int | None = 1
    message: str = "the server is busy, please try again later"
    type: str = "rate_limit_error"
    form: BodyForm = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class HtmlAnswer(Lie):
    name: ClassVar[str] = "html_answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash(Lie):
    """`after_tokens` None: before the first byte."""

    name: ClassVar[str] = "crash"
    after_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrlfLines(Lie):
    name: ClassVar[str] = "crlf_lines"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitUtf8(Lie):
    name: ClassVar[str] = "split_utf8"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFirst(Lie):
    """`field` is reasoning_content (llama.cpp, SGLang) or reasoning (vLLM since 0.11). Chat only."""

    name: ClassVar[str] = "reasoning_first"
    tokens: int = 4
    field: str = "reasoning_content"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowHeaders(Lie):
    name: ClassVar[str] = "slow_headers"
    delay_s: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPrefill(Lie):
    name: ClassVar[str] = "slow_prefill"
    delay_s: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class StallStream(Lie):
    name: ClassVar[str] = "stall_stream"
    after_tokens: int = 3
    for_s: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BigChunks(Lie):
    name: ClassVar[str] = "big_chunks"
    tokens: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoreDisconnect(Lie):
    name: ClassVar[str] = "ignore_disconnect"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimWindow(Lie):
    name: ClassVar[str] = "claim_window"
    tokens: int = 131_072


_ALL: tuple[type[Lie], ...] = (
    TruncateInput,
    ClampOutput,
    WrongUsage,
    NoUsage,
    WrongCount,
    FalseCached,
    HideCached,
    IgnoreCold,
    Hang,
    ErrorInStream,
    CutStream,
    NoDone,
    RoleEarly,
    KeepAlive,
    EmptyAnswer,
    FinishWith,
    Refuse,
    HtmlAnswer,
    Crash,
    CrlfLines,
    SplitUtf8,
    ReasoningFirst,
    SlowHeaders,
    SlowPrefill,
    StallStream,
    BigChunks,
    IgnoreDisconnect,
    ClaimWindow,
    *LIES_OF_LOAD,
)
LIES: dict[str, type[Lie]] = {kind.name: kind for kind in _ALL}
"""Every lie by name: what ``--lie NAME:key=value,key=value`` of the command line knows."""
