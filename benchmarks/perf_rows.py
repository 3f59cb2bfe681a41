"""A row of published performance → model, device, layout, precision: read from the row's own words, by rule.

No row is known by its id. What a row does not say is not filled in; `CannotDo` carries the reason.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from truth.cases import read_objects

from longproof.domain.measure import derived
from longproof.geometry.dtypes import KvDtype
from longproof.geometry.hf import geometry_of
from longproof.geometry.kinds import GroupedAttention, LatentAttention
from longproof.geometry.model import ModelGeometry
from longproof.hardware.catalogue import all_devices
from longproof.hardware.device import Device
from longproof.plan.capacity import Layout
from longproof.plan.perf_estimate import Precision
from longproof.plan.perf_model import WeightBytes, precision_of, weight_bytes_of, work_of
from longproof.plan.perf_work import AttentionWork, LayerWork, ModelWork

MODELS = Path(__file__).with_name("perf_models.json")
SERVING_CHUNK_TOKENS = 8192
"""vLLM's max_num_batched_tokens on devices of 70 GiB and more, where a row does not say its chunk."""


class CannotDo(Exception):  # noqa: N818 - a reason, no failure
    """Why a row has no prediction."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row as it is stored; text fields are "" when absent."""

    id: str
    model: str
    hardware: str
    layout: str
    metric: str
    unit: str
    notes: str
    value: float
    gpus: int | None
    context: int | None
    cached: int | None
    batch: int | None

    @property
    def kind(self) -> str:
        """measured, figure, formula, claim, simulated."""
        found = re.match(r"\[(\w+)\]", self.notes)
        return found.group(1) if found else "unknown"


def read_rows(path: Path) -> list[Row]:
    """All rows of a JSONL file."""
    rows: list[Row] = []
    for number, raw in enumerate(read_objects(path), start=1):
        value = raw.get("value")
        if not isinstance(value, int | float):
            print(f"error: {path}, row {number}: no number under value", file=sys.stderr)
            raise SystemExit(2)
        text = {
            name: str(raw.get(name) or "") for name in ("id", "model", "hardware", "layout", "metric", "unit", "notes")
        }
        rows.append(
            Row(
                **text, value=float(value), gpus=raw.get("gpus"), context=raw.get("context_tokens"),
                cached=raw.get("cached_tokens"), batch=raw.get("batch"),
            )
        )  # fmt: skip
    return rows


def seconds(row: Row) -> float:
    """The row's value in seconds."""
    return row.value * seconds_per_unit(row)


def seconds_per_unit(row: Row) -> float:
    """What the row's unit of time is in seconds."""
    scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    if row.unit not in scale:
        raise CannotDo(f"unit {row.unit} is no time")
    return scale[row.unit]


def needed(value: int | None, what: str) -> int:
    """A field that must be there and above 0."""
    if not value:
        raise CannotDo(f"the row does not say its {what}")
    return value


# --- model -----------------------------------------------------------------------------------------------------------


@cache
def _models() -> tuple[tuple[re.Pattern[str], dict[str, object], str], ...]:
    known = []
    for entry in json.loads(MODELS.read_text(encoding="utf-8")):
        for alias in entry["aliases"]:
            spelled = re.escape(alias).replace(r"\-", r"[-_ ]?")
            known.append((re.compile(rf"(?<![\w.]){spelled}(?![\w.])", re.IGNORECASE), entry, alias))
    # The longest alias that occurs is the most specific one.
    return tuple(sorted(known, key=lambda item: -len(item[2])))


def model_alias(row: Row) -> str:
    """The alias under which the row's model is known."""
    for pattern, _, alias in _models():
        if pattern.search(row.model):
            return alias
    raise CannotDo(f"no geometry is known for '{row.model}'")


def geometry(row: Row) -> ModelGeometry:
    """The geometry of the model the row names, with the changes its words ask for."""
    for pattern, entry, _ in _models():
        if pattern.search(row.model):
            found = geometry_of(entry["config"], name=entry["model"], source=entry["source"])  # type: ignore[arg-type]
            return _changed(found, row.model)
    raise CannotDo(f"no geometry is known for '{row.model}'")


def _changed(found: ModelGeometry, words: str) -> ModelGeometry:
    heads = re.search(r"(\d+) KV heads", words)
    if heads:
        count = int(heads.group(1))
        layers = tuple(
            replace(layer, attention=replace(layer.attention, kv_heads=count))
            if isinstance(layer.attention, GroupedAttention)
            else layer
            for layer in found.layers
        )
        return replace(found, layers=layers)
    if re.search(r"bf16", words, re.IGNORECASE):
        # "bf16 cache": the indexer's keys too, where the model has one.
        layers = tuple(
            replace(layer, attention=replace(a, indexer=replace(a.indexer, scaled_fp8=False)))
            if isinstance(a := layer.attention, LatentAttention) and a.indexer is not None
            else layer
            for layer in found.layers
        )
        return replace(found, layers=layers)
    return found


def work(row: Row) -> ModelWork:
    """What the row's model asks of a device, weights and cache in the precision its words give."""
    named = re.match(r"(\d+(?:\.\d+)?)B dense (\w+), (\d+) kB/token KV", row.model)
    if named:
        return _described(float(named.group(1)) * 1e9, float(named.group(3)) * 1e3, named.group(2))
    found = geometry(row)
    try:
        return work_of(found, kv_dtype(row, found), _weights(row, found))
    except Exception as error:
        raise CannotDo(str(error)) from error


def _described(elements: float, cached_bytes: float, dtype: str) -> ModelWork:
    each = 1.0 if dtype == "int8" else 2.0
    attention = AttentionWork(query_heads=1024, kv_heads=1024, score_dim=0, value_dim=0, cached_bytes=cached_bytes)
    layer = LayerWork(dense_elements=int(elements), dense_bytes=elements * each, attention=attention)
    return ModelWork(name="described", layers=(layer,), hidden_size=0)


def kv_dtype(row: Row, found: ModelGeometry) -> KvDtype:
    """The cache's dtype: the row's word before KV; else fp8 for NVFP4 checkpoints, which carry scales for an fp8 cache
    that vLLM then uses, and int8 where the whole model is int8; else bf16."""
    words = row.model.lower()
    sparse = any(getattr(layer.attention, "indexer", None) is not None for layer in found.layers)
    if re.search(r"q8_0", words):
        return KvDtype.Q8_0
    if re.search(r"f16 kv|bf16 kv|attn\+kv", words) and not re.search(r"fp8 (mla )?kv", words):
        return KvDtype.BFLOAT16
    if re.search(r"(fp8|int8) (mla )?kv", words):
        latent = any(isinstance(layer.attention, LatentAttention) for layer in found.layers)
        return KvDtype.FP8_DS_MLA if latent and sparse else KvDtype.FP8
    return KvDtype.FP8 if re.search(r"nvfp4|int8", words) else KvDtype.BFLOAT16


def narrow(row: Row) -> bool:
    """Whether the row's cache is fp8 in the layers that grow."""
    words = row.model.lower()
    return re.search(r"fp8 (mla )?kv", words) is not None or ("nvfp4" in words and "bf16 kv" not in words)


def _weight_words(row: Row) -> str:
    return re.sub(r"(fp8|bf16|f16|int8) (mla )?kv", "", row.model.lower())


def _weights(row: Row, found: ModelGeometry) -> WeightBytes:
    words = _weight_words(row)
    if "row-wise ffn" in words:
        return WeightBytes(attention=2.0, mlp=1.0, experts=1.0, outer=2.0)
    if re.search(r"nvfp4|fp4", words):
        return WeightBytes(attention=2.0, mlp=0.5625, experts=0.5625, outer=2.0)
    if re.search(r"int4|awq", words):
        return WeightBytes(attention=0.5625, mlp=0.5625, experts=0.5625, outer=2.0)
    if re.search(r"fp8|int8", words):
        return WeightBytes(attention=1.0, mlp=1.0, experts=1.0, outer=2.0)
    return weight_bytes_of(found)


def precision(row: Row) -> Precision:
    """Dtypes of the matrix products by the row's words; a model that is fp8 in part only (row-wise FFN) counts as
    bf16."""
    words = _weight_words(row)
    if "row-wise ffn" in words:
        return Precision()
    return precision_of(weight_format(row), device(row))


def weight_format(row: Row) -> str:
    """nvfp4, fp4, fp8, int4, awq or bf16, as the row's model words say."""
    found = re.search(r"nvfp4|fp4|fp8|int4|awq", _weight_words(row))
    return found.group(0) if found else "bf16"


# --- device ----------------------------------------------------------------------------------------------------------


def device(row: Row) -> Device:
    """The device the row's hardware words name: the longest alias wins; a network rate given there replaces the
    data file's."""
    if not row.hardware:
        raise CannotDo("the row names no hardware")
    if "not stated" in row.hardware:
        raise CannotDo("the hardware is not stated")
    best: tuple[int, Device] | None = None
    for known in all_devices():
        for alias in (known.name, *known.aliases):
            spelled = re.escape(alias).replace(r"\-", r"[-_ ]?").replace(r"\ ", r"[-_ ]?")
            # A count may stand before the name: 8xB200, 24x GB200.
            if re.search(rf"(?:^|\d+x ?|[\s,(/+]){spelled}(?![\w])", row.hardware, re.IGNORECASE) and (
                best is None or len(alias) > best[0]
            ):
                best = (len(alias), known)
    if best is None:
        raise CannotDo(f"no data file for '{row.hardware}'")
    rate = re.search(r"(\d+) ?Gb/s per GPU", row.hardware)
    if rate:
        return replace(
            best[1], scale_out_bytes_per_second=derived(float(rate.group(1)) / 8 * 1e9, "the row's hardware")
        )
    return best[1]


def devices(row: Row) -> int:
    """How many devices the row's words name, from `gpus` or a TPU grid such as 4x4."""
    grid = re.search(r"(\d+)x(\d+)\b", row.hardware)
    return row.gpus or (int(grid.group(1)) * int(grid.group(2)) if grid else 1)


# --- layout ----------------------------------------------------------------------------------------------------------


def layout(row: Row, words: str | None = None) -> Layout:
    """TPn, PPn, CPn or PCPn, DPn, EPn, DCPn of the row's layout; all devices in one tensor-parallel group where it
    says no more than that the model is split."""
    words = row.layout if words is None else words
    size = {
        name: int(found.group(1)) if (found := re.search(rf"(?<![A-Za-z]){name}(\d+)", words)) else 1
        for name in ("TP", "PP", "DP", "EP", "DCP", "PCP", "CP")
    }
    for name in ("TP", "CP"):  # PP4TP8, CP4xTP8: a size may follow another without a gap
        if size[name] == 1 and (found := re.search(rf"(?:\dx?){name}(\d+)", words)):
            size[name] = int(found.group(1))
    if "prefill CP" in words and size["CP"] == 1 and size["PCP"] == 1:
        raise CannotDo("the size of context parallelism is not stated")
    if re.search(r"fully sharded|model parallel", words):
        size["TP"] = devices(row)
    if re.search(r"\dP.*\dD|1P1D|PD\b", words):
        raise CannotDo("a prefill-decode pair under load is a fleet, not one engine")
    pcp = max(size["CP"], size["PCP"])
    split = size["TP"] * size["PP"] * pcp
    if row.gpus and size["DP"] == 1 and split != row.gpus:
        raise CannotDo(f"the layout '{words}' does not say how {row.gpus} devices are used")
    if size["DP"] > 1:
        return Layout(tp=size["DP"], dp=size["DP"], dp_attention=True, ep=size["EP"], pp=size["PP"])
    return Layout(tp=size["TP"], pp=size["PP"], ep=size["EP"], dcp=size["DCP"], pcp=pcp)


def chunk_tokens(row: Row) -> int | None:
    """Tokens per forward pass: as the row says, else what its engine does, else None."""
    if "no chunk" in row.layout:
        return row.context
    found = re.search(r"chunk (\d+)K", row.layout)
    if found:
        return int(found.group(1)) * 1024
    return SERVING_CHUNK_TOKENS if "vLLM" in row.layout else None
