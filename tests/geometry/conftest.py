"""Configs of published models, as far as they decide the geometry (tests/geometry/configs.json)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from longproof.geometry.hf import geometry_of
from longproof.geometry.model import ModelGeometry

CONFIGS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "configs.json").read_text())


@pytest.fixture(scope="session")
def config() -> Callable[..., dict[str, Any]]:
    """config(name, **changes): a copy of a published config; a change to None leaves the field out."""

    def copy(name: str, **changes: Any) -> dict[str, Any]:
        merged = {**CONFIGS[name], **changes}
        return {key: value for key, value in merged.items() if value is not None}

    return copy


@pytest.fixture(scope="session")
def model(config: Callable[..., dict[str, Any]]) -> Callable[..., ModelGeometry]:
    """model(name, **changes): the geometry of a published config."""

    def read(name: str, **changes: Any) -> ModelGeometry:
        return geometry_of(config(name, **changes), name=name, source="configs.json")

    return read
