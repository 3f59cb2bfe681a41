"""``fleet.toml``: what is served, for whom, under which rules. Read once, checked as a whole, then plain values.

Every section and key below is one field of one dataclass here; `docs/how-to/serve.md` shows them in use. Durations are
written "30s", sizes "64MiB", tokens 8192, "8k" or "8Ki". A key that is not known is an error: a misspelt limit must not
go unnoticed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from longproof.domain.units import parse_duration_ns, parse_tokens
from longproof.errors import UsageError
from longproof.gateway.byte_size import parse_bytes
from longproof.policy.claim_gate import OnExcess


def _written(parse: Callable[[str], int]) -> Callable[[object], object]:
    """A reader of what people write; what it refuses becomes one of pydantic's errors, which know the place."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except UsageError as problem:
            raise ValueError(f"{problem.problem}; {problem.advice}") from None

    return read


def _with_unit(value: object) -> object:
    if isinstance(value, str):
        return value
    raise ValueError('a duration is written with its unit, like "30s"')


Tokens = Annotated[int, BeforeValidator(_written(parse_tokens))]
Duration = Annotated[int, BeforeValidator(_written(parse_duration_ns)), BeforeValidator(_with_unit)]
"""Nanoseconds, written with a unit."""
Bytes = Annotated[int, BeforeValidator(_written(parse_bytes))]
Count = Annotated[int, Field(gt=0)]
SomeTokens = Annotated[Tokens, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Of something per second."""


class Section:
    """What all sections have in common: a key they do not know is an error."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSection(Section):
    """PEM files; paths are relative to the configuration file."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySection(Section):
    """The process. `body_limit`: the longest body taken; `open_limit`: all open bodies together, and
    what they become when they are parsed; `head_timeout`: a new connection that asks nothing for so long is closed;
    `most_connections`: at once, default: half of the descriptors that the system allows; `silence`: an engine
    that sends nothing for so long is given up; `stall`: a client that takes nothing for so long is; `keepalive`: of
    silence before a comment goes into a stream ("0s": none). `drain_grace`: still accepting after SIGTERM;
    `drain_within`: then what is open may take so long. `state`: directory for usage journal and ledger, None = usage is
    not written down. `decision_log`: a file; when it is `decision_log_size` long it becomes a part and a new one
    begins, and of all of them the newest `decision_log_files` are kept. `pass_through`: further engine routes that are
    passed on as they are. `allow_fields`: fields of a body that only the engines' owner may use otherwise (see
    `gateway.owner_fields`); `media_hosts`: where engines may fetch images, video and audio from, "*" anywhere.
    `open_metrics`: /metrics asks for no key where there are keys. `traces`: an OTLP/HTTP collector; `trace_share`: of
    requests that come without a trace, those that get one."""

    host: str = "127.0.0.1"
    port: int = 8080
    name: str = "gateway"
    body_limit: Bytes = 64 << 20
    open_limit: Bytes = 1 << 30
    body_timeout: Duration = 60_000_000_000
    head_timeout: Duration = 10_000_000_000
    most_connections: int | None = None
    keepalive: Duration = 10_000_000_000
    stall: Duration = 60_000_000_000
    silence: Duration = 600_000_000_000
    drain_grace: Duration = 0
    drain_within: Duration = 600_000_000_000
    default_output_tokens: Tokens = 4_096
    count_workers: int = 2
    state: Path | None = None
    ledger: str | None = None
    decision_log: Path | None = None
    decision_log_size: Bytes = 256 << 20
    decision_log_files: int = 8
    open_metrics: bool = False
    traces: str | None = None
    trace_share: float = 1.0
    pass_through: tuple[str, ...] = ()
    allow_fields: tuple[str, ...] = ()
    media_hosts: tuple[str, ...] = ()
    tls: TlsSection | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSection(Section):
    """What replicas and engines have in common. What is left out is asked of the engine; what it does not tell is not
    limited.

    `name` defaults to the address. `aliases`: further names that the engine itself answers to. `kv_capacity`,
    `context`, `slots`, `block_tokens` overrule what it tells.
    `reservation`: "upfront" (input and output at entry), "incremental" (the input alone), "sglang", or "measured"
    (the input and what outputs turn out to be); default: by its kind.
    `prefill_rate` (tokens/s) and `decode_time` (one token of one stream) are what predictions rest on; `host_rate`,
    `disk_rate`: cached tokens/s that come back from host memory and from disk (default: a fifth and seven tenths of the
    time it takes to prefill them);
    `prefill_window`: uncached tokens that may be in prefill there at once (default: one step of the engine where
    `prefill_rate` is given, else no bound); `prefill_step`: what one long prompt gets of an engine's step beside others
    (default: as the engine tells). `kv_events`, `kv_replay`, `kv_topic`: where vLLM or SGLang publish what
    their prefix cache holds. `tokenizer`: the model's directory, tokenizer.json or GGUF. `usage_in_streams` false: it
    does not take ``stream_options``.
    """

    name: str | None = None
    pool: str = "default"
    aliases: tuple[str, ...] = ()
    kv_capacity: SomeTokens | None = None
    context: SomeTokens | None = None
    slots: Count | None = None
    block_tokens: Count | None = None
    reservation: Literal["upfront", "incremental", "sglang", "measured"] | None = None
    prefill_rate: Rate | None = None
    host_rate: Rate | None = None
    disk_rate: Rate | None = None
    decode_time: Duration | None = None
    prefill_window: SomeTokens | None = None
    prefill_step: SomeTokens | None = None
    kv_events: str | None = None
    kv_replay: str | None = None
    kv_topic: str = ""
    tokenizer: Path | None = None
    usage_in_streams: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSection(ServedSection):
    """An engine that runs already, at `url`. `model`: which one, where it serves several. `api_key_env` names the
    environment variable that holds its own key.

    "pd-pair": two vLLM servers that hand KV from `prefill_url` to `decode_url` (NixlConnector), as one replica; its
    KV events are those of the prefill side, which is where prefixes are cached.
    """

    kind: Literal["engine", "pd-pair"] = "engine"
    url: str = ""
    prefill_url: str = ""
    decode_url: str = ""
    model: str | None = None
    api_key_env: str | None = None

    def __post_init__(self) -> None:
        if self.kind == "pd-pair":
            if self.url or not self.prefill_url or not self.decode_url:
                raise ValueError("a pd-pair has a prefill_url and a decode_url, and no url")
        elif not self.url or self.prefill_url or self.decode_url:
            raise ValueError('an engine has a url; with prefill_url and decode_url it is kind = "pd-pair"')


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSection(ServedSection):
    """An engine that is started here and stopped with the gateway.

    "embedded": llama.cpp in a process of its own; `model` is a GGUF path or hf://owner/repo/file.gguf, None = the
    default model; `context` is the window of each slot. "command": `command` is an argument list, `url` where it will
    listen, `ready` the path that answers 200 then, `environment` what is added to ours.
    """

    kind: Literal["embedded", "command"] = "embedded"
    model: str | None = None
    kv_type: str = "f16"
    kv_unified: bool = False
    threads: int | None = None
    command: tuple[str, ...] = ()
    url: str | None = None
    ready: str = "/health"
    start_within: Duration = 600_000_000_000
    environment: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsSection(Section):
    """How long and short requests share replicas; see `policy.pools.PoolRule`. `long_from` "never" keeps no request
    apart."""

    long_from: Tokens | Literal["never"] = 32_768
    long_pool: str | None = None
    keep_replicas: int = 1
    idle_tokens: Tokens = 8_192
    spill: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSection(Section):
    """How requests wait; see `policy.controller_config.QueueRule`. `age_bound`: who waited longer is served next,
    whatever its size; `longest_wait`: who waited so long is refused."""

    age_bound: Duration = 30_000_000_000
    longest_wait: Duration = 120_000_000_000
    overdue_share: float = 0.25
    most_waiting: int = 10_000
    most_waiting_per_tenant: int | None = None
    count_from: Tokens = 2_048
    engine_backoff: Duration = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkSection(Section):
    """Shares of a replica's KV: fuller than `stop`, nothing new enters until it is down to `resume`."""

    stop: float = 0.95
    resume: float = 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class SloSection(Section):
    """What is promised: first token within `ttft` + `ttft_per_token` · uncached input; `itl` between tokens. `min_hit`
    by model: refuse a request of whose input a smaller share than this (0 to 1) is expected to be cached."""

    ttft: Duration | None = None
    ttft_per_token: Duration = 0
    itl: Duration | None = None
    min_hit: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSection(Section):
    """One tenant: its weight among those who wait, and its budget of KV token-seconds."""

    name: str
    weight: Rate = 1.0
    kv_token_seconds_per_s: Rate | None = None
    kv_burst_token_seconds: Rate | None = None
    most_running: Count | None = None
    most_waiting: Annotated[int, Field(ge=0)] | None = None
    separate_prefixes: bool = False

    def __post_init__(self) -> None:
        if self.kv_burst_token_seconds is not None and self.kv_token_seconds_per_s is None:
            raise ValueError("kv_burst_token_seconds goes with kv_token_seconds_per_s, at which it fills")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySection(Section):
    """One API key: by its SHA-256, or by an environment variable that holds it."""

    name: str
    tenant: str | None = None
    sha256: str | None = None
    env: str | None = None
    models: tuple[str, ...] | None = None
    most_open: int | None = None
    per_minute: int | None = None
    most_input_tokens: Tokens | None = None
    most_output_tokens: Tokens | None = None
    priority: int = 0
    admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSection(Section):
    """What is sold: USD per million tokens (`kv_token_seconds` per million token-seconds). Empty `models` or `pools`:
    any."""

    name: str
    models: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    input: str | None = None
    cached: str | None = None
    output: str | None = None
    kv_token_seconds: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSection(Section):
    """An evidence directory, and what becomes of requests beyond what it shows. `model`: the served name it is about,
    None = as the evidence has it. `expires`: a date after which every answer says that it is out of date."""

    path: Path
    expires: date | None = None
    model: str | None = None
    on_excess: OnExcess = OnExcess.REJECT
    pool: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSection(Section):
    """Several gateways before the same engines. `url`: the Valkey or Redis through which they tell each other what they
    have booked ("valkey://host:6379/0", "valkeys://" for TLS, "unix://"); `password_env` names the environment variable
    that holds its password. `fleet` keeps fleets on one store apart: gateways of one fleet name the same replicas.
    `lease`: how long the bookings of a gateway that died stay."""

    url: str
    fleet: str = "longproof"
    lease: Duration = 3_000_000_000
    password_env: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig(Section):
    """The whole file."""

    gateway: GatewaySection = GatewaySection()
    shared: SharedSection | None = None
    replica: tuple[ReplicaSection, ...] = ()
    engine: tuple[EngineSection, ...] = ()
    pools: PoolsSection = PoolsSection()
    queue: QueueSection = QueueSection()
    watermark: WatermarkSection = WatermarkSection()
    slo: SloSection = SloSection()
    tenant: tuple[TenantSection, ...] = ()
    key: tuple[KeySection, ...] = ()
    price: tuple[PriceSection, ...] = ()
    claim: tuple[ClaimSection, ...] = ()
    directory: Path = field(default_factory=Path.cwd)

    def __post_init__(self) -> None:
        names = [tenant.name for tenant in self.tenant]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"tenant '{min(twice)}' has two sections")


_FLEET = TypeAdapter(FleetConfig)
_ADVICE = "see docs/how-to/serve.md for every section and key"


def read_config(path: Path) -> FleetConfig:
    """A configuration file. UsageError names the place and what is wrong there."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UsageError(f"{path} cannot be read: {problem.strerror}", advice="give the path of a fleet.toml") from None
    except (ValueError, RecursionError) as problem:  # TOML's own and UTF-8's errors, numbers of thousands of digits
        raise UsageError(f"{path} is not TOML: {problem}", advice="mend that line") from None
    return config_from(document, where=path)


def config_from(document: dict[str, object], *, where: Path) -> FleetConfig:
    """A parsed document as a configuration; paths in it are relative to the directory of `where`."""
    try:
        config = _FLEET.validate_python({**document, "directory": where.resolve().parent})
    except ValidationError as problems:
        first = problems.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        more = problems.error_count() - 1
        rest = f" (and {more} more)" if more else ""
        raise UsageError(f"{where}: {place}: {first['msg']}{rest}", advice=_ADVICE) from None
    if not config.replica and not config.engine:
        raise UsageError(f"{where} names no [[replica]] and no [[engine]]", advice=_ADVICE)
    return config
