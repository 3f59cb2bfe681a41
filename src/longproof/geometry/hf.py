"""Reads a Hugging Face config.json into a ModelGeometry: a mapping, a file, a model directory, or a hub id.

    config.json ─▶ ConfigFields (names, defaults, what is missing) ─▶ slots (which layer is what)
                ─▶ layer_attention, layer_states, layer_mlps ─▶ parameters ─▶ ModelGeometry

An architecture that is not known is read by the same rules when its standard fields suffice and no field that could
change the cache is left over; otherwise GeometryError says which fields are missing or not understood.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from longproof.domain.measure import Measured, Provenance, Reading, Unknown
from longproof.errors import GeometryError, ModelFileError
from longproof.geometry.config_fields import ConfigFields
from longproof.geometry.hf_layers import draft_layers, model_layers
from longproof.geometry.hub import hub_files
from longproof.geometry.model import Encoder, ModelGeometry, RopeScaling
from longproof.geometry.nesting import language_model
from longproof.geometry.parameters import EXACT, outer_weights
from longproof.geometry.quantization import quantization_of
from longproof.geometry.understood import check_architecture, check_understood

_INDEX = "model.safetensors.index.json"
_SIDECAR = "hf_quant_config.json"


def read_hf(source: Mapping[str, object] | str | Path, *, name: str | None = None) -> ModelGeometry:
    """The geometry of a config given as a mapping, a config.json, a directory that has one, or a hub id (owner/name).

    Raises GeometryError: a field that decides the cost is missing, contradictory or not understood. ModelFileError: the
    file cannot be found, read or downloaded.
    """
    if isinstance(source, Mapping):
        return geometry_of(source, name=name or "the config", source="a config given in memory")
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    index: Path | None = path.parent / _INDEX
    if not path.is_file():
        if isinstance(source, Path) or not _is_hub_id(source):
            raise ModelFileError(
                f"there is no {path}",
                advice="name a config.json, a model directory, a .gguf file or a hub id (owner/name)",
            )
        path, index = hub_files(source, index=_INDEX, sidecar=_SIDECAR)
        name = name or source
    values = _with_sidecar(_json(path), path.parent / _SIDECAR)
    return geometry_of(values, name=name or _called(path), source=str(path), weight_file_bytes=_indexed(index))


def geometry_of(
    config: Mapping[str, object],
    *,
    name: str,
    source: str,
    weight_file_bytes: Reading[int] | None = None,
) -> ModelGeometry:
    """The geometry a config describes. Pure. Raises GeometryError."""
    fields, unlisted = language_model(config, name)
    check_architecture(fields)
    layer_count = _layer_count(fields)
    layers = model_layers(fields, layer_count)
    drafts = draft_layers(fields, layers)
    tied = fields.flag("tie_word_embeddings")
    if fields.value("tie_word_embeddings") is None:
        fields.note("tie_word_embeddings is not stated: the head is counted as a matrix of its own")
    geometry = ModelGeometry(
        name=name,
        architecture=fields.model_type,
        source=source,
        layers=layers,
        drafts=drafts,
        hidden_size=_whole(fields, "hidden_size", source),
        vocab_size=_whole(fields, "vocab_size", source),
        max_position_tokens=_whole(fields, "max_position_embeddings", source),
        dtype=_dtype(fields, source),
        tied_embeddings=tied,
        rope=_rope(fields),
        quantization=quantization_of(fields),
        encoder=_encoder(fields, layers),
        outer=outer_weights(fields, layers=layer_count, tied=tied, unlisted=unlisted + _encoder_part(fields)),
        weights_exact=fields.model_type in EXACT,
        weight_file_bytes=weight_file_bytes or Unknown(reason="no safetensors index was read"),
    )
    fields.check()
    check_understood(fields)
    return _noted(geometry, fields)


def _noted(geometry: ModelGeometry, fields: ConfigFields) -> ModelGeometry:
    notes = list(fields.notes)
    if fields.assumed():
        notes.append(
            f"not stated, taken from transformers' defaults for {fields.model_type}: {', '.join(fields.assumed())}"
        )
    return replace(geometry, notes=tuple(notes))


_MOST_LAYERS = 10_000
"""Far beyond any decoder; a larger number is a slip, and would only be slow to refuse."""


def _layer_count(fields: ConfigFields) -> int:
    count = fields.stated_whole("num_hidden_layers")
    if count and fields.model_type == "longcat_flash" and "num_hidden_layers" not in fields.values:
        count *= 2  # num_layers counts blocks of two attentions each
    if count is None:
        listed = fields.sequence("layer_types") or fields.sequence("layers_block_type")
        pattern = fields.text("hybrid_override_pattern")
        count = len(listed) if listed else len(pattern) if pattern else None
    if not count or count < 1:
        fields.need("num_hidden_layers")
        # with nothing to count, the other missing fields are still named in the same error
        for field in ("num_attention_heads", "hidden_size"):
            if fields.stated(field) is None:
                fields.lacks(field)
        fields.check()
    if count is not None and count > _MOST_LAYERS:
        raise GeometryError(
            f"{fields.name}: num_hidden_layers is {count:,}, more than any model has",
            advice="correct num_hidden_layers in the config",
        )
    return count or 1


def _whole(fields: ConfigFields, field: str, source: str) -> Reading[int]:
    found = fields.whole(field)
    if found is None:
        return Unknown(reason=f"the config has no {field}")
    stated = fields.stated(field) is not None
    return Measured(
        value=found,
        provenance=Provenance.REPORTED if stated else Provenance.ASSUMED,
        source=f"{source} {field}" if stated else f"transformers' default of {field} for {fields.model_type}",
    )


def _dtype(fields: ConfigFields, source: str) -> Reading[str]:
    found = fields.text("torch_dtype")
    if found is None:
        fields.note("torch_dtype is not stated: bfloat16 is assumed")
        return Measured(value="bfloat16", provenance=Provenance.ASSUMED, source="engines run undeclared models in it")
    return Measured(value=found.removeprefix("torch."), provenance=Provenance.REPORTED, source=f"{source} torch_dtype")


def _rope(fields: ConfigFields) -> RopeScaling | None:
    scaling = fields.section("rope_scaling") or fields.section("rope_parameters")
    if scaling is None:
        return None
    full = scaling.section("full_attention")  # transformers 5 keeps one set per layer kind
    scaling = full or scaling
    kind = str(scaling.stated("rope_type") or scaling.stated("type") or "default")
    if kind == "default":
        return None
    factor = scaling.stated("factor")
    return RopeScaling(
        kind=kind,
        factor=float(factor) if isinstance(factor, int | float) else None,
        original_tokens=scaling.whole("original_max_position_embeddings")
        or fields.whole("original_max_position_embeddings"),
    )


def _encoder(fields: ConfigFields, layers: tuple[object, ...]) -> Encoder | None:
    if not any(getattr(layer, "cross", None) is not None for layer in layers):
        return None
    tokens = fields.whole("max_source_positions")
    reading: Reading[int] = (
        Unknown(reason="the config does not bound the encoder's output")
        if tokens is None
        else Measured(value=tokens, provenance=Provenance.REPORTED, source="max_source_positions")
    )
    return Encoder(tokens=reading, layers=fields.whole("encoder_layers"))


def _encoder_part(fields: ConfigFields) -> tuple[str, ...]:
    return ("encoder",) if fields.flag("is_encoder_decoder") else ()


def _is_hub_id(text: str) -> bool:
    parts = text.split("/")
    return len(parts) == 2 and all(parts) and not text.startswith((".", "/", "~")) and not text.endswith(".json")


def _json(path: Path) -> Mapping[str, object]:
    try:
        found: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise ModelFileError(
            f"{path} cannot be read: {problem}", advice="check the file and its permissions"
        ) from problem
    except json.JSONDecodeError as problem:
        raise ModelFileError(
            f"{path} is not JSON: {problem.msg} at line {problem.lineno}", advice="name the model's config.json"
        ) from problem
    if not isinstance(found, dict):
        raise GeometryError(f"{path} is not a JSON object", advice="name the model's config.json")
    return cast("Mapping[str, object]", found)


def _called(path: Path) -> str:
    """A config.json is called after its directory; a file of another name after itself."""
    return (path.resolve().parent.name if path.name == "config.json" else path.stem) or str(path)


def _with_sidecar(values: Mapping[str, object], path: Path) -> Mapping[str, object]:
    """The config with the quantisation that ModelOpt writes into a file beside it, where the config has none."""
    if values.get("quantization_config") is not None or not path.is_file():
        return values
    said = _json(path).get("quantization")
    if not isinstance(said, dict):
        return values
    return {**values, "quantization_config": {"quant_method": "modelopt", **cast("dict[str, object]", said)}}


def _indexed(path: Path | None) -> Reading[int]:
    """Bytes of all tensors, from the safetensors index beside the config."""
    if path is None or not path.is_file():
        return Unknown(reason=f"there is no {_INDEX} beside the config")
    metadata = _json(path).get("metadata")
    total = cast("Mapping[str, object]", metadata).get("total_size") if isinstance(metadata, dict) else None
    if not isinstance(total, int | float) or total <= 0:
        return Unknown(reason=f"{path} has no metadata.total_size")
    return Measured(value=int(total), provenance=Provenance.REPORTED, source=f"{path} metadata.total_size")
