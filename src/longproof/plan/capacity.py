"""The question and the answer every engine's rules share: a launch and its memory in, a `Capacity` out.

    geometry + Launch + one RankBudget per stage and rank
        ──▶ plan_vllm | plan_sglang | plan_llamacpp | plan_trtllm ──▶ Capacity

Each of those is `(ModelGeometry, Launch, tuple[RankBudget, ...]) -> Capacity`, pure and deterministic. With no budgets
the need of a request is still answered and the capacity is `Unknown`. What the engine prints (`EngineReport`) and what
it can hold (`concurrency`, `longest_request_tokens`) are separate fields: they differ in several releases.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from longproof.domain.measure import Reading, Unknown
from longproof.geometry.model import ModelGeometry

_NO_BUDGET = Unknown(reason="no available KV memory was given or estimated")


class PlanEngine(StrEnum):
    """The engines whose arithmetic is known."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llama.cpp"
    TENSORRT_LLM = "tensorrt-llm"


class Device(StrEnum):
    """What the engine runs on, as far as its defaults depend on it."""

    CUDA = "cuda"
    ROCM = "rocm"
    CPU = "cpu"
    TPU = "tpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a model is spread: tensor, pipeline, data, expert, decode-context and prefill-context parallel sizes.

    `partition` is the layers of each pipeline stage; empty means the engine's own default. `dp_attention`: attention
    runs data-parallel inside the tensor-parallel group (SGLang), so KV heads divide by `tp / dp`.
    """

    tp: int = 1
    pp: int = 1
    partition: tuple[int, ...] = ()
    dp: int = 1
    dp_attention: bool = False
    ep: int = 1
    dcp: int = 1
    pcp: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding: `method` in the engine's words (mtp, eagle, eagle3, ngram, ...), `tokens` drafted a step.

    `extra_kv_layers` are layers the draft adds to the KV cache; None means the method's own rule decides (mtp: the
    model's own draft layers). `draft`: the draft model, where it is a model of its own.
    """

    method: str
    tokens: int
    extra_kv_layers: int | None = None
    draft: ModelGeometry | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamacppOptions:
    """llama.cpp settings without a counterpart elsewhere. `unified` None: the build's default for the slot count.

    `recurrent_snapshots` is n_rs_seq, the extra recurrent states per sequence. `swa_dtype`: the windowed layers' format
    where a build keeps it apart (some builds of 2026 leave it f16 whatever the cache type says).
    """

    micro_batch_tokens: int = 512
    unified: bool | None = None
    swa_full: bool = False
    value_dtype: str | None = None
    swa_dtype: str | None = None
    recurrent_snapshots: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangOptions:
    """SGLang settings without a counterpart elsewhere, with the defaults of 0.5.23.

    `max_total_tokens` and `max_mamba_slots` are --max-total-tokens and --max-mamba-cache-size.
    `state_slots_per_request` is 3, and 4 or 5 with --mamba-scheduler-strategy extra_buffer. `raw_fp8_latent`: a
    backend that keeps sparse MLA's fp8 latents without scales (trtllm, tilelang and aiter on ROCm).
    `indexer_on_shared_layers` False: builds that keep no index keys where a layer reuses another's choice.
    `indexer_in_budget` False: builds before 0.5.4, which allocate the indexer's keys beside the budget.
    """

    max_total_tokens: int | None = None
    max_mamba_slots: int | None = None
    state_slots_per_request: int = 3
    swa_full_tokens_ratio: float = 0.8
    mamba_full_memory_ratio: float = 0.9
    raw_fp8_latent: bool = False
    indexer_on_shared_layers: bool = True
    indexer_in_budget: bool = True
    host_cache_bytes: int = 0
    host_cache_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """vLLM settings without a counterpart elsewhere.

    `ssm_dtype` is --mamba-ssm-cache-dtype, `conv_dtype` --mamba-cache-dtype ("auto" follows the model).
    `hybrid_manager` False is --disable-hybrid-kv-cache-manager. `kernel_block_tokens`: the smallest block the attention
    kernels of this platform take, to which a hybrid's block is aligned. `blocks_override` is --num-gpu-blocks-override.
    `raw_fp8_latent`: a backend that keeps sparse MLA's fp8 latents without scales (FlashInfer on SM100).
    `indexer_on_shared_layers` False: a build that stores no index keys where a layer reuses another's choice.
    """

    ssm_dtype: str = "auto"
    conv_dtype: str = "auto"
    hybrid_manager: bool = True
    kernel_block_tokens: int | None = None
    blocks_override: int | None = None
    indexer_on_shared_layers: bool = True
    raw_fp8_latent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launch as given; None is "not given, the engine decides".

    `version` is the engine's release ("0.32.0"), "" when unknown. `kv_dtype` in the engine's words ("auto" follows the
    model). `max_model_len_tokens` is llama.cpp's n_ctx, `max_num_seqs` its slots. `offline`: the library is called, not
    the server, which doubles some defaults.
    """

    engine: PlanEngine
    version: str = ""
    device: Device = Device.CUDA
    device_name: str = ""
    device_memory_bytes: int | None = None
    layout: Layout = field(default_factory=Layout)
    kv_dtype: str = "auto"
    block_size_tokens: int | None = None
    max_model_len_tokens: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    offline: bool = False
    memory_fraction: float | None = None
    speculation: Speculation | None = None
    vllm: VllmOptions = field(default_factory=VllmOptions)
    llamacpp: LlamacppOptions = field(default_factory=LlamacppOptions)
    sglang: SglangOptions = field(default_factory=SglangOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBudget:
    """Bytes one rank may give to the KV cache. `source` says where the figure came from."""

    stage: int
    rank: int
    available_bytes: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCapacity:
    """One pool of one rank. `name`: kv, full, swa, state, ...

    `units` counts blocks (vLLM, TensorRT-LLM), tokens (SGLang), cells (llama.cpp) or state slots, `unit` says which;
    `tokens` is None where a unit is not a token count.
    """

    name: str
    unit: str
    units: int
    bytes_per_unit: int
    total_bytes: int
    tokens: int | None = None
    layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCapacity:
    """What one rank of one pipeline stage holds. `first_layer` inclusive, `last_layer` exclusive, in model order."""

    stage: int
    rank: int
    first_layer: int
    last_layer: int
    available_bytes: int
    pools: tuple[PoolCapacity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNeed:
    """What one request takes in one group of layers. `kind`: full, sliding, state, ... `blocks` of `block_tokens`."""

    kind: str
    layers: int
    block_tokens: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestNeed:
    """What one request of `request_tokens` (prompt and output together) takes while it runs, engine overheads included.

    `blocks` is in units of the shared pool (0 where the engine has no blocks); `total_bytes` is on the binding rank.
    """

    request_tokens: int
    blocks: int
    total_bytes: int
    groups: tuple[GroupNeed, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    """What the engine's own log says. `misleading` says in one sentence why `tokens` is not a capacity, or None."""

    blocks: int | None = None
    tokens: int | None = None
    concurrency: float | None = None
    misleading: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The engine would not start, or not take the request. `rule` names the engine's rule; needed and available are
    bytes on the rank `stage`/`rank`."""

    rule: str
    needed_bytes: int
    available_bytes: int
    stage: int
    rank: int
    longest_request_tokens: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The answer for requests of one length.

    `concurrency` is how many such requests the pool holds at once; `tokens` the tokens they hold together
    (`concurrency x request_tokens`, rounded down); `longest_request_tokens` the longest single request admitted.
    `binding` is the index in `stages` of the rank that decides.
    """

    engine: PlanEngine
    block_tokens: int
    stages: tuple[StageCapacity, ...]
    binding: int | None
    report: EngineReport
    need: RequestNeed
    concurrency: Reading[float] = _NO_BUDGET
    tokens: Reading[int] = _NO_BUDGET
    longest_request_tokens: Reading[int] = _NO_BUDGET
    refusal: Refusal | None = None
    notes: tuple[str, ...] = ()


def unknown_capacity(
    engine: PlanEngine, block_tokens: int, need: RequestNeed, reason: Unknown | None = None, notes: tuple[str, ...] = ()
) -> Capacity:
    """What a request needs is known, and what there is for it is not; without a `reason`, for want of a budget."""
    why = _NO_BUDGET if reason is None else reason
    return Capacity(
        engine=engine,
        block_tokens=block_tokens,
        stages=(),
        binding=None,
        report=EngineReport(),
        need=need,
        concurrency=why,
        tokens=why,
        longest_request_tokens=why,
        notes=notes,
    )


def same_budget(layout: Layout, available_bytes: int, source: str) -> tuple[RankBudget, ...]:
    """One budget per stage and tensor-parallel rank, all of `available_bytes`."""
    return tuple(
        RankBudget(stage=stage, rank=rank, available_bytes=available_bytes, source=source)
        for stage in range(layout.pp)
        for rank in range(layout.tp)
    )
