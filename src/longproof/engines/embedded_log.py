"""Facts from llama.cpp's own start-up log: what its API does not tell (size, cells and types of the KV caches).

The lines are printed from verbosity 4 on, which is what the embedded engine runs with (read with xllamacpp
2026.10.11549 and in llama.cpp's llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp and
server-context.cpp of 2026).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_START = re.compile(r"srv\s+init: initializing \.\.\.")
_CONTEXT = re.compile(r"llama_context: n_ctx\s+= (\d+)")
_BATCH = re.compile(r"llama_context: n_batch\s+= (\d+)")
_UBATCH = re.compile(r"llama_context: n_ubatch\s+= (\d+)")
_SLOTS = re.compile(r"n_slots = (\d+), n_ctx_slot = (\d+), kv_unified = '(true|false)'")
_TRAINED = re.compile(r"print_info: n_ctx_train\s+= (\d+)")
_CAPPED = re.compile(r"the slot context \((\d+)\) exceeds the training context of the model \((\d+)\) - capping")
_KIND = re.compile(r"creating +(non-SWA|SWA) KV cache")
_KV = re.compile(
    r"llama_kv_cache\w*: size =\s*([\d.]+) MiB \(\s*(\d+) cells,\s*(\d+) layers,\s*(\d+)/(\d+) seqs\)"
    r", K \((\w+)\):\s*([\d.]+) MiB, V \((\w+)\):\s*([\d.]+) MiB"
)
_RECURRENT = re.compile(
    r"llama_memory_recurrent: size =\s*([\d.]+) MiB \(\s*(\d+) cells,\s*(\d+) layers,\s*(\d+) seqs.*?\)"
    r", R \((\w+)\).*?, S \((\w+)\)"
)
_COMPUTE = re.compile(r"sched_reserve:\s+(\S+) compute buffer size =\s*([\d.]+) MiB")
_FLASH = re.compile(r"(?:Flash Attention.*?|llama_init_from_model: )(enabl|disabl)(?:ed|ing flash_attn)")
_MIB = 1 << 20


class CacheKind(StrEnum):
    """Which layers a KV cache belongs to."""

    FULL = "full attention"
    SLIDING = "sliding window"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheFacts:
    """One KV cache as logged. A cell holds one token of all its layers; each stream has `cells_per_stream` of them.

    With a unified cache all slots share one stream, otherwise each slot has its own. Sizes are logged with two decimals
    of a MiB, so bytes are exact to ±5,243.
    """

    kind: CacheKind
    cells_per_stream: int
    streams: int
    slots: int
    layers: int
    size_bytes: int
    k_type: str
    k_bytes: int
    v_type: str
    v_bytes: int

    @property
    def cells(self) -> int:
        """Cells of all streams together."""
        return self.cells_per_stream * self.streams


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentStateFacts:
    """The state of recurrent layers: the same for any length. `layers` counts all layers of the model, as logged."""

    cells: int
    layers: int
    slots: int
    size_bytes: int
    r_type: str
    s_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppLogFacts:
    """What one start of llama.cpp logged. None = the line was not in the log.

    `context_tokens`: n_ctx after padding, all slots together. `slot_tokens`: the longest sequence a slot takes
    (n_ctx_slot). `capped_from_tokens`: what a slot could have held before the engine capped it to the trained length.
    `compute_bytes`: scratch memory of the compute graph, all devices.
    """

    context_tokens: int | None = None
    slots: int | None = None
    slot_tokens: int | None = None
    kv_unified: bool | None = None
    trained_tokens: int | None = None
    capped_from_tokens: int | None = None
    batch_tokens: int | None = None
    ubatch_tokens: int | None = None
    flash_attention: bool | None = None
    compute_bytes: int | None = None
    kv_caches: tuple[KvCacheFacts, ...] = ()
    recurrent: tuple[RecurrentStateFacts, ...] = ()

    @property
    def kv_capacity_tokens(self) -> int | None:
        """Tokens that the KV pool of the full-attention layers holds, all slots together.

        Of the sliding ones where there are no others.
        """
        full = [cache.cells for cache in self.kv_caches if cache.kind is CacheKind.FULL and cache.layers > 0]
        sliding = [cache.cells for cache in self.kv_caches if cache.kind is CacheKind.SLIDING and cache.layers > 0]
        return max(full or sliding, default=None)

    @property
    def kv_bytes(self) -> int | None:
        """Bytes of all KV caches and recurrent states together."""
        sizes = [cache.size_bytes for cache in self.kv_caches] + [state.size_bytes for state in self.recurrent]
        return sum(sizes) if sizes else None


def parse_llamacpp_log(text: str) -> LlamaCppLogFacts:
    """Facts of the last start in a llama.cpp server log. A line that is not there leaves its fact None."""
    starts = list(_START.finditer(text))
    if starts:
        text = text[starts[-1].start() :]
    slots = _SLOTS.search(text)
    capped = _CAPPED.search(text)
    flash = _FLASH.search(text)
    compute = [_bytes(found.group(2)) for found in _COMPUTE.finditer(text)]
    return LlamaCppLogFacts(
        context_tokens=_first(_CONTEXT, text),
        slots=int(slots.group(1)) if slots else None,
        slot_tokens=int(slots.group(2)) if slots else None,
        kv_unified=slots.group(3) == "true" if slots else None,
        trained_tokens=_first(_TRAINED, text),
        capped_from_tokens=int(capped.group(1)) if capped else None,
        batch_tokens=_first(_BATCH, text),
        ubatch_tokens=_first(_UBATCH, text),
        flash_attention=flash.group(1) == "enabl" if flash else None,
        compute_bytes=sum(compute) if compute else None,
        kv_caches=tuple(_kv_caches(text)),
        recurrent=tuple(
            RecurrentStateFacts(
                size_bytes=_bytes(found[1]),
                cells=int(found[2]),
                layers=int(found[3]),
                slots=int(found[4]),
                r_type=found[5],
                s_type=found[6],
            )
            for found in _RECURRENT.finditer(text)
        ),
    )


def _kv_caches(text: str) -> list[KvCacheFacts]:
    caches: list[KvCacheFacts] = []
    kind = CacheKind.FULL
    for line in text.splitlines():
        announced = _KIND.search(line)
        if announced:
            kind = CacheKind.SLIDING if announced[1] == "SWA" else CacheKind.FULL
        found = _KV.search(line)
        if found:
            caches.append(
                KvCacheFacts(
                    kind=kind,
                    size_bytes=_bytes(found[1]),
                    cells_per_stream=int(found[2]),
                    layers=int(found[3]),
                    slots=int(found[4]),
                    streams=int(found[5]),
                    k_type=found[6],
                    k_bytes=_bytes(found[7]),
                    v_type=found[8],
                    v_bytes=_bytes(found[9]),
                )
            )
            kind = CacheKind.FULL
    return caches


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found[1]) if found else None


def _bytes(mib: str) -> int:
    return round(float(mib) * _MIB)
