"""The launch flags longproof writes, as each engine documents them: a typo cannot reach a command line.

Read in: vLLM 0.32.0 (`vllm serve`, engine/arg_utils.py), SGLang 0.5.23 (srt/arg_groups/fields), llama.cpp b11434
(common/arg.cpp, tools/server/README.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from longproof.plan.capacity import PlanEngine

FlagValue: TypeAlias = str | int | float | bool | None


class FlagKind(StrEnum):
    """What follows a flag. SWITCH: nothing."""

    INT = "int"
    FLOAT = "float"
    TEXT = "text"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagTable:
    """One engine's flags. `version`: of the engine they were read in."""

    version: str
    flags: dict[str, FlagKind]

    def written(self, pairs: Iterable[tuple[str, FlagValue]]) -> tuple[str, ...]:
        """Arguments for the pairs whose value is given: None and False are left out, True is a switch.

        Raises KeyError for a flag that is not in the table, ValueError for a value of another kind: our bug.
        """
        found: list[str] = []
        for flag, value in pairs:
            kind = self.flags[flag]
            if value is None or value is False:
                continue
            if (kind is FlagKind.SWITCH) != (value is True):
                raise ValueError(f"{flag} is of kind {kind.value}, not {value!r}")
            found += [flag] if value is True else [flag, _text(flag, kind, value)]
        return tuple(found)


def _text(flag: str, kind: FlagKind, value: str | float) -> str:
    if kind is FlagKind.INT and not isinstance(value, int) and not str(value).startswith("$"):
        raise ValueError(f"{flag} takes a whole number, not {value!r}")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(version: str, *, ints: str, floats: str, texts: str, switches: str) -> FlagTable:
    kinds = ((FlagKind.INT, ints), (FlagKind.FLOAT, floats), (FlagKind.TEXT, texts), (FlagKind.SWITCH, switches))
    return FlagTable(version=version, flags={f"--{name}": kind for kind, names in kinds for name in names.split()})


VLLM_FLAGS = _table(
    "0.32.0",
    ints="port tensor-parallel-size pipeline-parallel-size data-parallel-size decode-context-parallel-size "
    "prefill-context-parallel-size nnodes node-rank block-size max-model-len max-num-batched-tokens max-num-seqs "
    "num-gpu-blocks-override",
    floats="gpu-memory-utilization",
    texts="host served-model-name master-addr kv-cache-dtype kv-transfer-config speculative-config "
    "mamba-ssm-cache-dtype mamba-cache-dtype compilation-config",
    switches="enable-expert-parallel headless enable-prefix-caching no-enable-prefix-caching async-scheduling "
    "no-async-scheduling disable-hybrid-kv-cache-manager",
)
SGLANG_FLAGS = _table(
    "0.5.23",
    ints="port tp-size pp-size dp-size attn-dp-size attn-cp-size ep-size dcp-size nnodes node-rank context-length "
    "page-size chunked-prefill-size max-running-requests max-total-tokens max-mamba-cache-size "
    "disaggregation-bootstrap-port speculative-num-steps speculative-eagle-topk speculative-num-draft-tokens "
    "hicache-size",
    floats="mem-fraction-static swa-full-tokens-ratio mamba-full-memory-ratio hicache-ratio",
    texts="model-path served-model-name host dist-init-addr kv-cache-dtype cp-strategy disaggregation-mode "
    "disaggregation-transfer-backend speculative-algorithm speculative-draft-model-path",
    switches="enable-prefill-cp disable-radix-cache enable-hierarchical-cache disable-overlap-schedule",
)
LLAMACPP_FLAGS = _table(
    "b11434",
    ints="port ctx-size parallel ubatch-size batch-size n-gpu-layers",
    floats="",
    texts="model hf-repo host alias cache-type-k cache-type-v split-mode tensor-split flash-attn",
    switches="kv-unified no-kv-unified swa-full metrics",
)

FLAGS = {PlanEngine.VLLM: VLLM_FLAGS, PlanEngine.SGLANG: SGLANG_FLAGS, PlanEngine.LLAMACPP: LLAMACPP_FLAGS}
