"""Fetches a model's small description files from the Hugging Face hub; weights are never downloaded."""

from __future__ import annotations

import importlib
from pathlib import Path

from longproof.errors import ModelFileError


def hub_files(model: str, *, index: str, sidecar: str) -> tuple[Path, Path | None]:
    """(config.json, the safetensors index or None when the model has none) of a hub id; `sidecar` comes beside them.

    Raises ModelFileError: no such model, no access, or the hub cannot be reached.
    """
    # imported here: half a second that only a hub id costs
    hub = importlib.import_module("huggingface_hub")
    errors = importlib.import_module("huggingface_hub.errors")
    advice = "check the spelling and your access, or give a local config.json"
    try:
        config = Path(hub.hf_hub_download(model, "config.json", library_name="longproof"))
    except errors.LocalEntryNotFoundError as problem:
        raise ModelFileError(f"the hub cannot be reached for '{model}'", advice=advice) from problem
    except errors.EntryNotFoundError as problem:
        raise ModelFileError(f"the hub's '{model}' has no config.json", advice=advice) from problem
    except (errors.HfHubHTTPError, OSError, ValueError) as problem:
        first = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise ModelFileError(f"'{model}' cannot be read from the hub: {first}", advice=advice) from problem
    found: list[Path | None] = []
    for name in (index, sidecar):
        try:
            found.append(Path(hub.hf_hub_download(model, name, library_name="longproof")))
        except (errors.EntryNotFoundError, errors.HfHubHTTPError, OSError):
            found.append(None)  # a model in one file has no index, and few have a sidecar
    return config, found[0]
