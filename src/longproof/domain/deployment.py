"""What is being proved: one model behind one engine, with where each fact about it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum

from longproof.domain.measure import Measured, Reading, Unknown

_NOT_ASKED = Unknown(reason="not asked of this engine")


class EngineKind(StrEnum):
    """Which dialect a server speaks."""

    LLAMACPP = "llama.cpp"
    VLLM = "vllm"
    SGLANG = "sglang"
    OPENAI = "openai"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A running configuration as far as it is known. Every field is a Reading: a value with provenance, or Unknown with
    the reason.

    `kv_capacity_tokens` is what the engine's own KV pool holds, which is neither the configured limit nor what was
    measured. `slots` is the number of sequences that may run together (llama.cpp slots, vLLM max_num_seqs, SGLang
    max_running_requests). `slot_limit_tokens` is the longest sequence one slot takes, where that differs from the
    configured limit. `other` holds further settings by name, e.g. launch flags.
    """

    engine: EngineKind
    engine_version: Reading[str] = _NOT_ASKED
    engine_build: Reading[str] = _NOT_ASKED
    model: Reading[str] = _NOT_ASKED
    model_file: Reading[str] = _NOT_ASKED
    model_sha256: Reading[str] = _NOT_ASKED
    weight_dtype: Reading[str] = _NOT_ASKED
    configured_limit_tokens: Reading[int] = _NOT_ASKED
    trained_limit_tokens: Reading[int] = _NOT_ASKED
    slots: Reading[int] = _NOT_ASKED
    slot_limit_tokens: Reading[int] = _NOT_ASKED
    kv_capacity_tokens: Reading[int] = _NOT_ASKED
    kv_blocks: Reading[int] = _NOT_ASKED
    block_size_tokens: Reading[int] = _NOT_ASKED
    kv_dtype: Reading[str] = _NOT_ASKED
    kv_unified: Reading[bool] = _NOT_ASKED
    prefix_caching: Reading[bool] = _NOT_ASKED
    max_batched_tokens: Reading[int] = _NOT_ASKED
    layout: Reading[str] = _NOT_ASKED
    chat_template_sha256: Reading[str] = _NOT_ASKED
    other: dict[str, Reading[str]] = field(default_factory=dict[str, Reading[str]])

    def readings(self) -> Iterator[tuple[str, Reading[str] | Reading[int] | Reading[bool]]]:
        """All (name, reading) pairs except `engine`, in declaration order; `other` entries come last as
        ``other.NAME``."""
        for item in fields(self):
            if item.name not in ("engine", "other"):
                yield item.name, getattr(self, item.name)
        for name in sorted(self.other):
            yield f"other.{name}", self.other[name]

    def known(self) -> dict[str, str]:
        """Known readings as text, `engine` included; what a fingerprint is made of."""
        values = {"engine": self.engine.value}
        values.update({name: str(r.value) for name, r in self.readings() if isinstance(r, Measured)})
        return values
