"""Engine metrics on the side: scraped again and again while requests are under way, on the requests' own clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from longproof.domain.events import EngineSample
from longproof.engines.base import Engine
from longproof.errors import EngineMisbehaved

_GIVE_UP_S = 15.0
"""llama.cpp answers between two batches, which can be seconds; this long is no answer."""

WATCHED = frozenset(
    f"{engine}:{name}"
    for engine, named in {
        # vLLM 0.32: v1/metrics/loggers.py, v1/spec_decode/metrics.py, the NIXL connector's metrics; gpu_… before 0.10
        "vllm": """num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc
            gpu_cache_usage_perc num_preemptions_total prefix_cache_queries_total prefix_cache_hits_total
            external_prefix_cache_queries_total external_prefix_cache_hits_total prompt_tokens_total
            prompt_tokens_by_source_total prompt_tokens_cached_by_source_total generation_tokens_total
            request_success_total admission_rejections_total request_queue_time_seconds_sum
            request_queue_time_seconds_count request_prefill_time_seconds_sum request_prefill_time_seconds_count
            request_decode_time_seconds_sum request_decode_time_seconds_count spec_decode_num_drafts_total
            spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total nixl_bytes_transferred_sum
            nixl_bytes_transferred_count nixl_xfer_time_seconds_sum nixl_xfer_time_seconds_count
            nixl_num_failed_transfers_total nixl_num_failed_notifications_total nixl_num_kv_expired_reqs_total""",
        # SGLang 0.5.23: observability/metrics_collector.py
        "sglang": """num_running_reqs num_queue_reqs token_usage swa_token_usage num_used_tokens cache_hit_rate
            num_paused_reqs num_retracted_reqs total_retracted_reqs num_retractions_count num_retractions_sum
            num_retracted_requests_total num_retracted_input_tokens_total num_retracted_output_tokens_total
            realtime_tokens_total
            prompt_tokens_total generation_tokens_total cached_tokens_total num_requests_total queue_time_seconds_sum
            queue_time_seconds_count num_prefill_prealloc_queue_reqs num_prefill_inflight_queue_reqs
            num_decode_prealloc_queue_reqs num_decode_transfer_queue_reqs num_bootstrap_failed_reqs_total
            num_transfer_failed_reqs_total spec_accept_length spec_accept_rate""",
        # llama.cpp b8000 and later: tools/server; the kv_cache_… gauges are of older builds
        "llamacpp": """requests_processing requests_deferred prompt_tokens_total prompt_seconds_total
            tokens_predicted_total tokens_predicted_seconds_total n_decode_total n_busy_slots_per_decode n_tokens_max
            kv_cache_usage_ratio kv_cache_tokens""",
    }.items()
    for name in named.split()
) | {"process_resident_memory_bytes"}
"""What the probes under load read. Bare names; llama.cpp's slots come beside them."""


class Sampler:
    """Samples in the order they were taken, until somebody takes them.

    `failed` counts the scrapes that got no answer, since the last `take` of it. `sampled` counts all samples so far and
    `last` is the latest, taken or not.
    """

    def __init__(self, engine: Engine, every_s: float, wanted: frozenset[str] | None) -> None:
        self._engine = engine
        self._every_s = every_s
        self._wanted = wanted
        self._samples: list[EngineSample] = []
        self._failed = 0
        self.sampled = 0
        self.last: EngineSample | None = None

    def take(self) -> tuple[EngineSample, ...]:
        """The samples since the last call."""
        taken, self._samples = tuple(self._samples), []
        return taken

    def take_failed(self) -> int:
        """How many scrapes failed since the last call."""
        failed, self._failed = self._failed, 0
        return failed

    async def run(self) -> None:
        """Scrapes on a grid of `every_s`, until cancelled. A scrape that takes longer leaves out the beats it missed:
        a slow server gets no second question while the first is open."""
        loop = asyncio.get_running_loop()
        beat = loop.time()
        while True:
            await self._scrape()
            now = loop.time()
            beat += self._every_s * max(1, -int((beat - now) // self._every_s))
            await asyncio.sleep(max(0.0, beat - now))

    async def _scrape(self) -> None:
        try:
            async with asyncio.timeout(_GIVE_UP_S):
                self.last = await self._engine.sample(wanted=self._wanted)
                self._samples.append(self.last)
                self.sampled += 1
        except (EngineMisbehaved, TimeoutError):
            self._failed += 1


@asynccontextmanager
async def sampling(
    engine: Engine, every_s: float, wanted: frozenset[str] | None = WATCHED
) -> AsyncGenerator[Sampler, None]:
    """Samples the engine's metrics every `every_s` seconds while inside; nothing at all of an engine that has none.

    `wanted`: bare metric names; None = all that the engine's dialect keeps.
    """
    sampler = Sampler(engine, every_s, wanted)
    if not engine.capabilities.metrics:
        yield sampler
        return
    task = asyncio.create_task(sampler.run())
    try:
        yield sampler
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()  # it ends by itself only through a mistake of ours
