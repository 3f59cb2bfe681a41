"""``fleet.toml``: what is served, for whom, under which rules. Read once, checked as a whole, then plain values.

Every section and key is one field of one dataclass here; docs/reference/fleet-toml.md is made of their docstrings. A
key that is not known is an error: a misspelt limit must not go unnoticed.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from longproof.errors import UsageError
from longproof.gateway.config_values import Amount, Bytes, Count, Duration, Patience, Share, SomeTokens, Tokens
from longproof.policy.claim_gate import OnExcess


class Section:
    """What all sections have in common: a key they do not know is an error."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSection(Section):
    """PEM files: `certificate`, the whole chain, and its `key`. `client_ca`: clients must show a certificate that it
    signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySection(Section):
    """The process. It listens at `host` and `port` (0: any that is free), with `tls` if that section is there;
    `name`: its own among all that share a ledger.

    `body_limit`: the longest body taken; `open_limit`: all open bodies together, and what they become when they are
    parsed; `body_timeout`: a body that has not come by then is given up; `head_timeout`: a new connection that asks
    nothing for so long is closed; `most_connections`: at once (default: half of the descriptors that the system
    allows). `silence`: an engine that sends nothing for so long is given up; `stall`: a client that takes nothing for
    so long is; `keepalive`: of silence before a comment goes into a stream ("0s": none). `drain_grace`: still
    accepting after SIGTERM; `drain_within`: then what is open may take so long.

    `default_output_tokens`: the allowance of a request that names none, where no limit of its model tells;
    `count_workers`: threads that count prompts, as many for short ones as for long.

    `state`: directory for usage journal, ledger, pinned prefixes and engines' logs (default: one of the user's own for
    each port); `ledger`: another file, or the URL of a PostgreSQL. `decision_log`: a file; when it is
    `decision_log_size` long it becomes a part and a new one begins, and of all of them the newest `decision_log_files`
    are kept. `open_metrics`: /metrics asks for no key where there are keys. `traces`: an OTLP/HTTP collector;
    `trace_share`: of requests that come without a trace, those that get one.

    `pass_through`: further engine routes that are passed on as they are: "/v1/audio/*", "GET /version". `allow_fields`:
    fields of a body that only the engines' owner may use otherwise; `media_hosts`: where engines may fetch images,
    video and audio from, "*" anywhere.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    name: str = "gateway"
    body_limit: Bytes = 64 << 20
    open_limit: Bytes = 1 << 30
    body_timeout: Patience = 60_000_000_000
    head_timeout: Patience = 10_000_000_000
    most_connections: Count | None = None
    keepalive: Duration = 10_000_000_000
    stall: Patience = 60_000_000_000
    silence: Patience = 600_000_000_000
    drain_grace: Duration = 0
    drain_within: Duration = 600_000_000_000
    default_output_tokens: SomeTokens = 4_096
    count_workers: Count = 2
    state: Path | None = None
    ledger: str | None = None
    decision_log: Path | None = None
    decision_log_size: Bytes = 256 << 20
    decision_log_files: Count = 8
    open_metrics: bool = False
    traces: str | None = None
    trace_share: Share = 1.0
    pass_through: tuple[str, ...] = ()
    allow_fields: tuple[str, ...] = ()
    media_hosts: tuple[str, ...] = ()
    tls: TlsSection | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSection(Section):
    """What replicas and engines have in common. What is left out is asked of the engine; what it does not tell is not
    limited.

    `name` defaults to the address; `pool`: where it belongs. `aliases`: further names that the engine itself answers
    to. `kv_capacity`, `context`, `slots`, `block_tokens` overrule what it tells. `reservation`: "upfront" (input and
    output at entry), "incremental" (the input alone), "sglang", or "measured" (the input and what outputs turn out to
    be); default: by its kind. `prefill_rate` (tokens/s) and `decode_time` (one token of one stream) are what
    predictions rest on; `prefill_window`: uncached tokens that may be in prefill there at once (default: one step of
    the engine where `prefill_rate` is given, else no bound); `prefill_step`: what one long prompt gets of an engine's
    step beside others (default: as the engine tells). `kv_events`, `kv_replay`, `kv_topic`: where vLLM or SGLang
    publish what their prefix cache holds. `tokenizer`: the model's directory, tokenizer.json or GGUF.
    `usage_in_streams` false: it does not take `stream_options`.
    """

    name: str | None = None
    pool: str = "default"
    aliases: tuple[str, ...] = ()
    kv_capacity: SomeTokens | None = None
    context: SomeTokens | None = None
    slots: Count | None = None
    block_tokens: Count | None = None
    reservation: Literal["upfront", "incremental", "sglang", "measured"] | None = None
    prefill_rate: Amount | None = None
    decode_time: Patience | None = None
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

    `kind` "pd-pair": two vLLM servers that hand KV from `prefill_url` to `decode_url` (NixlConnector), as one replica;
    its KV events are those of the prefill side, which is where prefixes are cached.
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
    """An engine that is started here and stopped with the gateway. `start_within`: how long that may take.

    `kind` "embedded": llama.cpp in a process of its own; `model` is a GGUF path or hf://owner/repo/file.gguf (default:
    a small one); `context` is the window of each slot, `kv_unified`: slots share their cells; `kv_type`: of its cache;
    `threads` (default: as llama.cpp has it). "command": `command` is an argument list, `url` where it will listen,
    `ready` the path that answers 200 then, `environment` what is added to ours.
    """

    kind: Literal["embedded", "command"] = "embedded"
    model: str | None = None
    kv_type: str = "f16"
    kv_unified: bool = False
    threads: Count | None = None
    command: tuple[str, ...] = ()
    url: str | None = None
    ready: str = "/health"
    start_within: Patience = 600_000_000_000
    environment: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        if self.kind == "command" and (not self.command or self.url is None):
            raise ValueError('a command needs both: command = ["vllm", "serve", …] and url = "http://127.0.0.1:8000"')


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsSection(Section):
    """How long and short requests share replicas. `long_from`: uncached tokens from which a request is long; "never"
    keeps none apart. One long prefill at a time runs on a replica, and none on `keep_replicas` of them. With a
    `long_pool`, longs go there, and to others only while those have no more than `idle_tokens` waiting for prefill;
    shorts go there, too, unless `spill` is false.
    """

    long_from: Tokens | Literal["never"] = 32_768
    long_pool: str | None = None
    keep_replicas: int = 1
    idle_tokens: Tokens = 8_192
    spill: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSection(Section):
    """How requests wait. `age_bound`: who waited longer is served next, whatever its size, in at most `overdue_share`
    of the work while others wait; `longest_wait`: who waited so long is refused. `most_waiting`,
    `most_waiting_per_tenant`: beyond it arrivals are refused at once. `count_from`: an upper bound of a length below
    this is not counted exactly. `engine_backoff`: a Retry-After of engines up to this long is waited out, a longer one
    is passed on."""

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
    """What is promised: first token within `ttft` + `ttft_per_token` · uncached input; `itl` between tokens; `tpot` per
    token of an answer, which bounds how many streams run together. `min_hit` by model: refuse a request of whose input
    a smaller share than this (0 to 1) is expected to be cached."""

    ttft: Patience | None = None
    ttft_per_token: Duration = 0
    itl: Patience | None = None
    tpot: Patience | None = None
    min_hit: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantSection(Section):
    """One tenant, by the `name` that keys give. `weight`: twice as much is twice the service when both wait. Its
    budget of KV token-seconds fills at `kv_token_seconds_per_s` up to `kv_burst_token_seconds` (default: a minute of
    it). `most_running`, `most_waiting`: of its requests at once. `separate_prefixes`: nobody else's requests find what
    its own have cached."""

    name: str
    weight: Amount = 1.0
    kv_token_seconds_per_s: Amount | None = None
    kv_burst_token_seconds: Amount | None = None
    most_running: Count | None = None
    most_waiting: Annotated[int, Field(ge=0)] | None = None
    separate_prefixes: bool = False

    def __post_init__(self) -> None:
        if self.kv_burst_token_seconds is not None and self.kv_token_seconds_per_s is None:
            raise ValueError("kv_burst_token_seconds bounds a budget; give kv_token_seconds_per_s, which fills it")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySection(Section):
    """One API key: by its SHA-256 (`sha256`), or by an environment variable that holds it (`env`). `tenant`: whose it
    is (default: a tenant of its own `name`). `models`: the names it may use (default: all). `most_open`: requests at
    once; `per_minute`: a rate, with bursts of a minute's; `most_input_tokens`, `most_output_tokens`: of one request.
    `priority`: smaller is served earlier. `admin`: it may pin prefixes and see the dashboard."""

    name: str
    tenant: str | None = None
    sha256: str | None = None
    env: str | None = None
    models: tuple[str, ...] | None = None
    most_open: Count | None = None
    per_minute: Count | None = None
    most_input_tokens: SomeTokens | None = None
    most_output_tokens: SomeTokens | None = None
    priority: int = 0
    admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSection(Section):
    """What is sold under a `name`: USD per million tokens of `input` that was not cached, of `cached` input and of
    `output`, and per million `kv_token_seconds`. `models`, `pools`: what it covers (default: any)."""

    name: str
    models: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    input: str | None = None
    cached: str | None = None
    output: str | None = None
    kv_token_seconds: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSection(Section):
    """The evidence directory at `path`, and what becomes of requests beyond what it shows: `on_excess` "reject",
    "warn" (served, with a header) or "route" (served by `pool` alone). `model`: the served name it is about (default:
    as the evidence has it). `expires`: a date after which every answer says that it is out of date."""

    path: Path
    expires: date | None = None
    model: str | None = None
    on_excess: OnExcess = OnExcess.REJECT
    pool: str | None = None

    def __post_init__(self) -> None:
        if self.on_excess is OnExcess.ROUTE and self.pool is None:
            raise ValueError('on_excess = "route" needs the pool that longer requests go to')


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSection(Section):
    """Several gateways before the same engines. `url`: the Valkey or Redis through which they tell each other what they
    have booked ("valkey://host:6379/0", "valkeys://" for TLS, "unix://"); `password_env` names the environment variable
    that holds its password. `fleet` keeps fleets on one store apart: gateways of one fleet name the same replicas.
    `lease`: how long the bookings of a gateway that died stay."""

    url: str
    fleet: str = "longproof"
    lease: Patience = 3_000_000_000
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


_FLEET = TypeAdapter(FleetConfig)
_ADVICE = "see docs/reference/fleet-toml.md for every section and key"


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
        # a number is shown as it was written; a text may be a secret under a wrong name
        given = f"; it is {first['input']}" if isinstance(first["input"], int | float) else ""
        more = problems.error_count() - 1
        rest = f" (and {more} more)" if more else ""
        raise UsageError(f"{where}: {place}: {first['msg']}{given}{rest}", advice=_ADVICE) from None
    if not config.replica and not config.engine:
        raise UsageError(f"{where} names no [[replica]] and no [[engine]]", advice=_ADVICE)
    return config
