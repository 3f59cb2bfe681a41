"""vLLM: the launches a report may describe.

Settings a report did not record are tried in the order of likelihood, the engine's default first; each trial names
what was assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from longproof.errors import UserError
from longproof.geometry.kinds import LatentAttention
from longproof.geometry.model import ModelGeometry
from longproof.plan.capacity import Capacity, Launch, PlanEngine, Speculation, VllmOptions, same_budget
from longproof.plan.vllm_capacity import plan_vllm
from longproof.plan.vllm_pool import VllmPool, build_pool
from longproof.plan.vllm_release import LogLine, parse_release, rules_for
from truth.cases import Case

_MLA_BLOCKS = (64, 16, 32, 128)
_BATCHED_TOKENS = (2048, 8192, 16384)
_DRAFTED = (1, 2, 3, 4, 5)
_OLD_LOG = ("0.20.0", "0.15.0", "0.13.0")
_UNRECORDED = ("0.25.0", *_OLD_LOG, "0.8.0")


@dataclass(frozen=True)
class Trial:
    """A launch the report may describe, the pool it makes, and what of it was not recorded."""

    case: Case
    geometry: ModelGeometry
    launch: Launch
    pool: VllmPool
    lines: tuple[LogLine, ...]
    assumed: str

    def plan(self, available_bytes: int) -> Capacity:
        """The launch with the same bytes on every rank."""
        return plan_vllm(self.geometry, self.launch, same_budget(self.launch.layout, available_bytes, "report"))

    @property
    def need(self) -> int:
        """Blocks of one request of the reported length."""
        return self.pool.blocks_for(self.pool.length_tokens)


def trials(case: Case, geometry: ModelGeometry) -> Iterator[Trial]:
    """Launches the report may describe, likeliest first. Raises UserError when none can be built."""
    hybrid = any(layer.state is not None for layer in geometry.layers)
    latent = any(isinstance(layer.attention, LatentAttention) for layer in geometry.layers)
    windowed = any(getattr(layer.attention, "window_tokens", None) for layer in geometry.layers)
    base = _launch(case, hybrid)
    batches: tuple[int | None, ...] = (case.max_num_batched_tokens,)
    if windowed and case.max_num_batched_tokens is None:
        batches = (None, *_BATCHED_TOKENS)
    blocks: tuple[int | None, ...] = (base.block_size_tokens,)
    if latent and not hybrid and base.block_size_tokens is None:
        blocks = (None, *_MLA_BLOCKS)
    builds = _builds(geometry, case)
    drafts = _speculations(geometry, case)
    refused: UserError | None = None
    built = False
    for version, caching, block, batch, build, draft in product(
        _versions(case), (None, True, False), blocks, batches, builds, drafts
    ):
        if caching is not None and (not hybrid or caching is rules_for(version).hybrids_cache_prefixes):
            continue
        assumed = (
            f"a release like {version}" if version != case.version else "",
            f"prefix caching {'on' if caching else 'off'}" if caching is not None else "",
            f"block {block}" if block != base.block_size_tokens else "",
            f"max_num_batched_tokens {batch}" if batch != case.max_num_batched_tokens else "",
            builds[build],
            drafts[draft],
        )
        launch = replace(
            base,
            version=version,
            prefix_caching=caching,
            block_size_tokens=block,
            max_num_batched_tokens=batch,
            vllm=build,
            speculation=draft,
        )
        try:
            pool = build_pool(geometry, launch)
        except UserError as error:
            refused = refused or error
            continue
        built = True
        yield Trial(
            case=case,
            geometry=geometry,
            launch=launch,
            pool=pool,
            lines=_lines(case),
            assumed=", ".join(filter(None, assumed)),
        )
    if refused is not None and not built:
        raise refused


def _launch(case: Case, hybrid: bool) -> Launch:
    return Launch(
        engine=PlanEngine.VLLM,
        version=case.version,
        device=case.device,
        device_name=case.gpu,
        device_memory_bytes=case.memory_bytes,
        layout=case.layout,
        kv_dtype=case.kv_dtype,
        # A hybrid's recorded block is the outcome of the alignment, so it is predicted and compared.
        block_size_tokens=None if hybrid else case.block_size,
        max_model_len_tokens=case.max_model_len,
        max_num_batched_tokens=case.max_num_batched_tokens,
        max_num_seqs=case.max_num_seqs,
    )


def _speculations(geometry: ModelGeometry, case: Case) -> dict[Speculation | None, str]:
    """The drafting a report may mean: tokens where it does not say how many, one layer where the config lists none."""
    seen = case.speculative
    if seen is None:
        return {None: ""}
    hybrid = any(layer.state is not None for layer in geometry.layers)
    counts = (seen.tokens,) if seen.tokens else _DRAFTED if hybrid else (1,)
    found: dict[Speculation | None, str] = {}
    for tokens in counts:
        layers: tuple[int | None, ...] = (0,) if seen.shares_kv else (None,) if geometry.drafts else (None, 1)
        for extra in layers:
            words = (
                f"{tokens} drafted" if tokens != seen.tokens and hybrid else "",
                "one draft layer" if extra else "",
            )
            speculation = Speculation(method=seen.method, tokens=tokens, extra_kv_layers=extra)
            found[speculation] = ", ".join(filter(None, words))
    return found


def _builds(geometry: ModelGeometry, case: Case) -> dict[VllmOptions, str]:
    """Layouts of a sparse latent's cache that differ between backends and builds, the usual one first."""
    indexers = [attention.indexer for layer in geometry.layers if (attention := layer.attention) is not None]
    builds = {VllmOptions(): ""}
    if any(indexer is not None and indexer.shares_top_k for indexer in indexers):
        builds[VllmOptions(indexer_on_shared_layers=False)] = "no index keys on layers that share them"
    if any(indexers) and case.kv_dtype.startswith("fp8") and case.kv_dtype != "fp8_ds_mla":
        builds[VllmOptions(raw_fp8_latent=True)] = "fp8 latents without scales"
    return builds


def _versions(case: Case) -> tuple[str, ...]:
    """The recorded release; where none was, the newest and one before each change of the rules."""
    if "old log" in case.version:
        return _OLD_LOG
    return (case.version,) if parse_release(case.version) is not None else (case.version, *_UNRECORDED)


def _lines(case: Case) -> tuple[LogLine, ...]:
    if "new log" in case.version:
        return (LogLine.PER_LENGTH,)
    if "old log" in case.version:
        return (LogLine.PER_GROUP,)
    if parse_release(case.version) is None:
        return (LogLine.PER_LENGTH, LogLine.PER_GROUP)
    return tuple(dict.fromkeys((*rules_for(case.version).log_lines, *_range_end(case.version))))


def _range_end(version: str) -> tuple[LogLine, ...]:
    """The lines of the later release in ``0.20 -> 0.21`` or ``0.20.x-0.21``."""
    for mark in ("->", "-"):
        later = version.rpartition(mark)[2]
        if mark in version and parse_release(later) is not None:
            return rules_for(later).log_lines
    return ()
