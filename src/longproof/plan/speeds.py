"""Time and price of a planned launch, or why they cannot be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longproof.domain.measure import Measured, Reading, Unknown, derived, value_or_none
from longproof.domain.shapes import RequestShape
from longproof.errors import UserError
from longproof.geometry.dtypes import KvDtype, bits_per_element
from longproof.geometry.model import ModelGeometry
from longproof.hardware.device import Device
from longproof.plan.capacity import Capacity, Launch, PlanEngine
from longproof.plan.cost import STANDARD_BANDS, Band, BandPrice, Fleet, price_band, prices_by_band
from longproof.plan.perf_calibrate import TimedPoint, calibrate
from longproof.plan.perf_decode import Batch, decode_time
from longproof.plan.perf_estimate import Precision, Rates, TimeEstimate
from longproof.plan.perf_model import work_of
from longproof.plan.perf_prefill import Prompt, prefill_time
from longproof.plan.perf_work import ModelWork
from longproof.plan.search_server import decode_layout, prefill_layout
from longproof.plan.summary import known_dtype

_NARROW_BITS = 8
_NO_DEVICE = Unknown(reason="no device is named")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Times of the asked request. `prefill`: of its whole input, cold and alone. `decode_alone`: one step with it
    alone, `decode_full`: one step with `sequences` such requests together (None: the capacity is not known)."""

    prefill: TimeEstimate
    decode_alone: TimeEstimate
    decode_full: TimeEstimate | None
    sequences: int | None


def speeds_of(
    geometry: ModelGeometry,
    launch: Launch,
    request: RequestShape,
    device: Device | None,
    sequences: int | None,
    rates: Rates | None,
) -> Reading[Speeds]:
    """Prefill and decode of `request`. Unknown where the device or the model lacks a figure."""
    if device is None:
        return _NO_DEVICE
    try:
        dtype = cache_dtype(geometry, launch)
        work, precision = work_of(geometry, dtype), precision_of(geometry)
        narrow, decoding = narrow_cache(dtype), decode_layout(launch.engine, launch.layout)
        context = request.input_tokens + request.output_tokens / 2
        prompt = Prompt(new_tokens=max(1, request.input_tokens), chunk_tokens=launch.max_num_batched_tokens)

        def step(count: int) -> TimeEstimate:
            batch = Batch(sequences=count, context_tokens=context)
            return decode_time(
                work, device, batch, layout=decoding, precision=precision, rates=rates, narrow_cache=narrow
            )

        found = Speeds(
            prefill=prefill_time(
                work,
                device,
                prompt,
                layout=prefill_layout(launch.engine, launch.layout),
                precision=precision,
                rates=rates,
            ),
            decode_alone=step(1),
            decode_full=step(sequences) if sequences else None,
            sequences=sequences,
        )
    except UserError as problem:
        return Unknown(reason=problem.problem)
    return derived(found, f"{device.title}: {'calibrated' if rates else 'its'} efficiencies and peaks")


def calibrated_rates(
    geometry: ModelGeometry,
    launch: Launch,
    device: Device,
    *,
    prefill: Sequence[TimedPoint],
    decode: Sequence[TimedPoint],
) -> Rates:
    """The device's efficiencies as measured times of this very launch show them; what has no points keeps its own.

    Raises UsageError for a point without time, or when a figure of device or model is missing.
    """
    work = work_of(geometry, cache_dtype(geometry, launch))
    found = calibrate(
        work, device, prefill=prefill, decode=decode, layout=decode_layout(launch.engine, launch.layout),
        precision=precision_of(geometry),
    )  # fmt: skip
    return found.rates


def prices_of(
    geometry: ModelGeometry,
    launch: Launch,
    device: Device | None,
    capacity: Capacity,
    rates: Rates | None,
    usd_per_hour: Band | None,
    request: RequestShape,
) -> Reading[tuple[BandPrice, ...]]:
    """USD per million tokens at the standard context bands up to the limit, and at the limit itself."""
    if device is None:
        return _NO_DEVICE
    price = price_band(device)
    if usd_per_hour is not None:
        price = derived(usd_per_hour, "given")
    if isinstance(price, Unknown):
        return price
    if not isinstance(capacity.concurrency, Measured):
        return Unknown(reason=f"the capacity is not known: {capacity.concurrency.reason}")
    try:
        work = work_of(geometry, cache_dtype(geometry, launch))
        limit = capacity.need.request_tokens
        fleet = Fleet(
            device=device,
            layout=launch.layout,
            usd_per_hour=price.value,
            cache_bytes=_session_bytes(work, limit, launch) * capacity.concurrency.value,
        )
        output = max(1, request.output_tokens)
        found = prices_by_band(
            work, fleet, output_tokens=output, bands=_bands(limit - output), cached_share=0.0,
            max_sequences=launch.max_num_seqs or 256, precision=precision_of(geometry), rates=rates,
        )  # fmt: skip
    except UserError as problem:
        return Unknown(reason=problem.problem)
    return derived(found, f"{device.title} at ${price.value.typical:g} per hour ({price.source})")


def cache_dtype(geometry: ModelGeometry, launch: Launch) -> KvDtype:
    """The KV cache's dtype: as asked, the checkpoint's where the engine follows it, llama.cpp's f16."""
    if launch.kv_dtype == "auto" and launch.engine is PlanEngine.LLAMACPP:
        return KvDtype.FLOAT16
    return known_dtype(launch.kv_dtype, value_or_none(geometry.dtype)) or KvDtype.BFLOAT16


def narrow_cache(dtype: KvDtype) -> bool:
    """Whether the cache must be widened as it is read."""
    return bits_per_element(dtype) <= _NARROW_BITS


def precision_of(geometry: ModelGeometry) -> Precision:
    """The dtype of the matrix products: fp8 where weights and activations are, else what activations travel in."""
    quantized = geometry.quantization
    if quantized is not None and quantized.method.lower() in ("fp8", "fbgemm_fp8"):
        return Precision(weights="fp8")
    return Precision()


def _session_bytes(work: ModelWork, tokens: int, launch: Launch) -> float:
    """Cache of one session on every data-parallel rank: each has a pool of its own."""
    return work.sequence_bytes(tokens) * launch.layout.dp


def _bands(limit: int) -> tuple[tuple[str, int], ...]:
    inside = tuple(band for band in STANDARD_BANDS if band[1] <= limit)
    if limit < 1 or any(tokens == limit for _, tokens in inside):
        return inside
    return (*inside, (f"{limit:,}", limit))
