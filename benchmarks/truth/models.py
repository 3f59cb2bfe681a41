"""The models of the reports: configs by name, turned into geometries once each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from longproof.geometry.hf import read_hf
from longproof.geometry.model import ModelGeometry
from truth.cases import read_objects


@dataclass
class KnownModels:
    """Configs by lower-case name; an alias such as ``Qwen/Qwen3.6-27B (same dims)`` counts without its remark."""

    configs: Mapping[str, Mapping[str, object]]
    _built: dict[str, ModelGeometry] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> KnownModels:
        """The models of a JSON-lines file with `model`, `config` and optional `aliases`."""
        configs: dict[str, Mapping[str, object]] = {}
        for row in read_objects(path):
            config, aliases = row.get("config"), row.get("aliases")
            names = [*(aliases if isinstance(aliases, list) else ()), row.get("model")]
            for name in names:
                if isinstance(name, str) and isinstance(config, dict):
                    configs[_key(name)] = config
        return cls(configs)

    def geometry(self, name: str) -> ModelGeometry | None:
        """The geometry of a model; None when the file does not list it. Raises UserError for an unusable config."""
        key = _key(name)
        if key not in self.configs:
            return None
        if key not in self._built:
            self._built[key] = read_hf(self.configs[key], name=name)
        return self._built[key]


def _key(name: str) -> str:
    return re.sub(r"\s*\(.*", "", name).strip().lower()
