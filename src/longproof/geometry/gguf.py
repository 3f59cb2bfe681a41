"""Reads a GGUF header into a ModelGeometry: layers from the metadata, weights from the tensors' own shapes and sizes.

Key names as gguf-py 0.19 has them; which layers slide, recur or chunk where the file does not say so itself as
llama.cpp b11434 decides it per architecture (`load_hparams`).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from longproof.domain.measure import Measured, Provenance, Reading, Unknown
from longproof.errors import ModelFileError
from longproof.geometry.gguf_bounds import require_bounded
from longproof.geometry.gguf_layers import gguf_layers
from longproof.geometry.gguf_metadata import GgufMetadata
from longproof.geometry.model import Layer, LayerWeights, ModelGeometry, OuterWeights, Quantization, RopeScaling

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_PLAIN = {0: "float32", 1: "float16", 30: "bfloat16"}  # general.file_type of unquantised files
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One tensor of a GGUF: name, elements, bytes on disk."""

    name: str
    elements: int
    size_bytes: int


def read_gguf(path: str | Path, *, name: str | None = None) -> ModelGeometry:
    """The geometry of a GGUF file; of a split model give the first part, the others are read from beside it.

    Raises ModelFileError: missing, unreadable, cut short or not a GGUF. GeometryError: it does not settle its cache.
    """
    first = Path(path)
    parts = _parts(first)
    metadata, tensors = _read(parts[0])
    for part in parts[1:]:
        tensors += _read(part)[1]
    return gguf_geometry(
        metadata, tensors, name=name or str(metadata.get("general.name") or first.stem), source=str(first)
    )


def gguf_geometry(
    metadata: Mapping[str, object], tensors: tuple[GgufTensor, ...], *, name: str, source: str
) -> ModelGeometry:
    """The geometry that metadata and tensors describe. Pure. Raises GeometryError."""
    fields = GgufMetadata(metadata, name=name)
    weights, outer = _weights(tensors)
    layers, drafts = gguf_layers(fields)
    fields.check()
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    file_type = metadata.get("general.file_type")
    plain = _PLAIN.get(file_type) if isinstance(file_type, int) else None
    return ModelGeometry(
        name=name,
        architecture=fields.architecture,
        source=source,
        layers=_weighed(layers, weights, fields),
        drafts=_weighed(drafts, weights, fields),
        hidden_size=_reading(fields.whole("embedding_length"), "embedding_length"),
        vocab_size=_reading(fields.vocabulary(), "vocab_size"),
        max_position_tokens=_reading(fields.whole("context_length"), "context_length"),
        dtype=Measured(value=plain or "float16", provenance=Provenance.DERIVED, source="general.file_type"),
        tied_embeddings=tied,
        rope=_rope(fields),
        quantization=None if plain else _quantization(tensors),
        outer=outer,
        weight_file_bytes=Measured(
            value=sum(tensor.size_bytes for tensor in tensors),
            provenance=Provenance.REPORTED,
            source=f"{source} tensors",
        )
        if tensors
        else Unknown(reason="the file lists no tensors"),
        weights_exact=True,
        notes=tuple(fields.notes),
    )


def _weighed(layers: tuple[Layer, ...], weights: Mapping[int, LayerWeights], fields: GgufMetadata) -> tuple[Layer, ...]:
    experts, used = fields.whole("expert_count") or 0, fields.whole("expert_used_count") or 0
    result: list[Layer] = []
    for layer in layers:
        counted = weights.get(layer.index)
        if counted is not None and experts:
            counted = replace(counted, active_experts=counted.experts * used // experts)
        result.append(replace(layer, weights=counted))
    return tuple(result)


def _weights(tensors: tuple[GgufTensor, ...]) -> tuple[Mapping[int, LayerWeights], OuterWeights | None]:
    blocks: dict[int, dict[str, int]] = {}
    outer = {"embedding": 0, "lm_head": 0, "other": 0}
    for tensor in tensors:
        found = _BLOCK.match(tensor.name)
        if found is None:
            outer[_outer_part(tensor.name)] += tensor.elements
            continue
        block = blocks.setdefault(int(found.group(1)), {})
        part = _part(found.group(2))
        block[part] = block.get(part, 0) + tensor.elements
        if found.group(2).startswith(("attn_k.", "attn_v.")):
            block["kv_projection"] = block.get("kv_projection", 0) + tensor.elements
    weights = {index: LayerWeights(**block) for index, block in blocks.items()}
    if not tensors:
        return weights, None
    return weights, OuterWeights(embedding=outer["embedding"], lm_head=outer["lm_head"], other=outer["other"])


def _outer_part(tensor: str) -> str:
    if tensor.startswith("token_embd."):
        return "embedding"
    return "lm_head" if tensor == "output.weight" else "other"


def _part(tensor: str) -> str:
    if "norm" in tensor or "gate_inp" in tensor or tensor.startswith(("attn_kv_a", "attn_q_a", "indexer", "exp_probs")):
        return "replicated"
    if "_exps" in tensor:
        return "experts"
    if tensor.startswith("ffn_"):
        return "mlp"
    return "attention"


def _quantization(tensors: tuple[GgufTensor, ...]) -> Quantization:
    elements = sum(tensor.elements for tensor in tensors) or 1
    return Quantization(method="gguf", bits=8 * sum(tensor.size_bytes for tensor in tensors) / elements)


def _rope(fields: GgufMetadata) -> RopeScaling | None:
    kind = fields.get("rope.scaling.type")
    if not isinstance(kind, str) or kind == "none":
        return None
    factor = fields.get("rope.scaling.factor")
    return RopeScaling(
        kind=kind,
        factor=float(factor) if isinstance(factor, int | float) else None,
        original_tokens=fields.whole("rope.scaling.original_context_length"),
    )


def _reading(value: int | None, key: str) -> Reading[int]:
    if value is None:
        return Unknown(reason=f"the file has no {key}")
    return Measured(value=value, provenance=Provenance.REPORTED, source=key)


def _parts(first: Path) -> tuple[Path, ...]:
    found = _SPLIT.search(first.name)
    if found is None:
        return (first,)
    stem, total = first.name[: found.start()], int(found.group(2))
    return tuple(first.with_name(f"{stem}-{number:05d}-of-{total:05d}.gguf") for number in range(1, total + 1))


def _read(path: Path) -> tuple[dict[str, object], tuple[GgufTensor, ...]]:
    if not path.is_file():
        raise ModelFileError(
            f"there is no model file {path}", advice="check the path; a split model needs all its parts"
        )
    library = importlib.import_module("gguf")  # imported here: numpy and half a second that only a GGUF costs
    try:
        require_bounded(path)
        reader = cast("Any", library).GGUFReader(str(path))
        metadata = {str(key): field.contents() for key, field in reader.fields.items() if not _skipped(str(key))}
        metadata["tokenizer.ggml.tokens"] = _length(reader.fields.get("tokenizer.ggml.tokens"))
        tensors = tuple(
            GgufTensor(name=str(t.name), elements=int(t.n_elements), size_bytes=int(t.n_bytes)) for t in reader.tensors
        )
    except OSError as problem:
        raise ModelFileError(f"{path} cannot be read: {problem}", advice="check its permissions") from problem
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeDecodeError, RecursionError) as problem:
        raise ModelFileError(
            f"{path} is not a usable GGUF file: {problem}",
            advice="name a whole GGUF of version 2 or 3, or a config.json",
        ) from problem
    return metadata, tensors


def _skipped(key: str) -> bool:
    return key.startswith("tokenizer.")


def _length(field: object) -> int | None:
    data = getattr(field, "data", None)
    return None if data is None else len(data)
