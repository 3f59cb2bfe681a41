"""How an engine behaves: what it is, how fast it is, how much it holds, and which lies it tells."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

from longproof.errors import UsageError
from longproof.testing.answers import Answers
from longproof.testing.dialects import LLAMACPP, Dialect
from longproof.testing.fake_pool import OverCapacity
from longproof.testing.kv_publisher import KvEvents
from longproof.testing.lie import Lie
from longproof.testing.lies import LIES
from longproof.testing.lies_of_load import LIES_OF_SCHEDULING


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """An honest, fast engine unless told otherwise.

    `window_tokens` is the longest prompt + output of one request, and is enforced; `slots` requests run together,
    more wait. `kv_capacity_tokens` is the pool they share (None = room for every slot's whole window); a request
    takes prompt + output allowance of it, and `over_capacity` says what happens when there is no room. Prefill takes
    uncached tokens / `prefill_tokens_per_s`; every token after the first takes `token_s`. `cache_entries` prompts are
    remembered (0 = no prefix cache). `api_key` is asked for when set. `checks_model`: an unknown model name is
    refused (None = as the dialect does). `adds_bos`: a BOS token is put before text prompts and chats.
    `reports_cached`: usage tells them.

    `compute` "apart": every request has a timetable of its own, as if it ran alone. "shared": all run in common steps
    (`step_loop`): up to `step_tokens` of prompts and one token of every answer a step, which takes `step_s` + prompt
    tokens / `prefill_tokens_per_s` + `token_s` x (1 + `batch_share` for every further answer). A prompt gets at most
    `prompt_step_tokens` of a step while others are there (vLLM's long_prefill_token_threshold). Blocks grow with a
    request where the dialect has it so (`grows` overrules it), `watermark` of them stay free on admission, and gauges
    are one step old. `jitter` is the sigma of a lognormal factor (mean 1) on every time, drawn from `seed`.

    `queue_limit` requests at most are in the engine: a further one gets 503, with Retry-After where `retry_after_s`
    is set. `speculation` tokens are drafted a step, each accepted with probability `acceptance` after the one before.
    `dev_mode`: vLLM's /abort_requests is there. `kv_connector`: it takes and gives KV as vLLM's NixlConnector does,
    `kv_token_bytes` a token at `transfer_bytes_per_s`. A start takes `start_s` before it listens.

    `kv_events`: it publishes what its prompt cache holds (`kv_publisher`), None = it does not.

    `answers` gives the words of an answer, where it knows one (`solver.Solver`: a model whose ability is known).
    """

    dialect: Dialect = LLAMACPP
    model: str = "fake-135m"
    window_tokens: int = 8192
    slots: int = 4
    kv_capacity_tokens: int | None = None
    over_capacity: OverCapacity = OverCapacity.QUEUE
    prefill_tokens_per_s: float = 200_000.0
    token_s: float = 0.0005
    cache_entries: int = 8
    api_key: str | None = None
    checks_model: bool | None = None
    adds_bos: bool = False
    reports_cached: bool = True
    compute: Literal["apart", "shared"] = "apart"
    step_tokens: int = 2048
    prompt_step_tokens: int | None = None
    step_s: float = 0.0
    batch_share: float = 0.02
    grows: bool | None = None
    watermark: float = 0.0
    jitter: float = 0.0
    seed: int = 0
    queue_limit: int | None = None
    retry_after_s: int | None = 1
    speculation: int = 0
    acceptance: float = 0.7
    dev_mode: bool = False
    kv_connector: bool = False
    kv_token_bytes: int = 23_040
    transfer_bytes_per_s: float = 1e9
    start_s: float = 0.0
    kv_events: KvEvents | None = None
    answers: Answers | None = None
    lies: tuple[Lie, ...] = ()

    @property
    def in_steps(self) -> bool:
        """Whether requests share steps: asked for, or needed by a lie about scheduling."""
        return self.compute == "shared" or any(isinstance(lie, LIES_OF_SCHEDULING) for lie in self.lies)

    @property
    def blocks_grow(self) -> bool:
        """Whether a request's blocks grow with it."""
        return self.dialect.grows if self.grows is None else self.grows

    @property
    def pool_tokens(self) -> int:
        """KV tokens that all running requests share."""
        return self.kv_capacity_tokens if self.kv_capacity_tokens is not None else self.slots * self.window_tokens

    def lying(self, *lies: Lie) -> Behaviour:
        """The same engine with these lies in place of its own."""
        return dataclasses.replace(self, lies=lies)

    def but(self, **changes: Any) -> Behaviour:
        """The same engine with other settings."""
        return dataclasses.replace(self, **changes)


def parse_lie(text: str) -> Lie:
    """``truncate_input:keep_tokens=100,lose=tail`` → a lie. Raises UsageError for an unknown name, field or value."""
    name, _, settings = text.partition(":")
    kind = LIES.get(name)
    if kind is None:
        raise UsageError(f"there is no lie '{name}'", advice=f"choose one of: {', '.join(sorted(LIES))}")
    known = {field.name for field in dataclasses.fields(kind)}
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        if key not in known:
            raise UsageError(f"the lie '{name}' has no setting '{key}'", advice=f"it has: {', '.join(sorted(known))}")
        values[key] = _value(f"{name}.{key}", value, hints[key])
    return kind(**values)


def parse_lies(texts: Iterable[str]) -> tuple[Lie, ...]:
    """Several of them, in order."""
    return tuple(parse_lie(text) for text in texts)


def _value(where: str, text: str, hint: Any) -> Any:
    choices: tuple[Any, ...] = getattr(hint, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        if text not in choices:
            raise UsageError(f"{where} cannot be '{text}'", advice=f"choose one of: {', '.join(choices)}")
        return text
    if type(None) in choices and text.lower() == "none":
        return None
    if hint is bool:
        return text.lower() in ("1", "true", "yes", "on")
    wanted = next((kind for kind in (int, float) if kind is hint or kind in choices), str)
    try:
        return wanted(text)
    except ValueError:
        raise UsageError(f"{where} cannot be '{text}'", advice=f"write a number ({wanted.__name__})") from None
