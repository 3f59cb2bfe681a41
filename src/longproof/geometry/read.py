"""One door for every kind of model description."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from longproof.errors import ModelFileError
from longproof.geometry.gguf import read_gguf
from longproof.geometry.hf import read_hf
from longproof.geometry.model import ModelGeometry


def read_geometry(source: Mapping[str, object] | str | Path) -> ModelGeometry:
    """The geometry of a .gguf file, a config.json, a directory with either, a hub id (owner/name) or a mapping.

    Raises ModelFileError: not found or not readable. GeometryError: it does not settle what the model costs.
    """
    if isinstance(source, Mapping):
        return read_hf(source)
    path = Path(source)
    if path.suffix == ".gguf":
        return read_gguf(path)
    if path.is_dir() and not (path / "config.json").is_file():
        found = sorted(path.glob("*.gguf"))
        if not found:
            raise ModelFileError(
                f"{path} has neither a config.json nor a .gguf file", advice="name the model's directory or file"
            )
        whole = [file for file in found if "-of-" not in file.name or "-00001-of-" in file.name]
        if len(whole) > 1:
            raise ModelFileError(f"{path} has {len(whole)} GGUF models", advice="name one of the .gguf files")
        return read_gguf(whole[0] if whole else found[0])
    return read_hf(source)
