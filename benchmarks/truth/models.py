"""The models of the reports: configs by name, turned into geometries once each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from longproof.geometry.hf import read_hf
from longproof.geometry.model import ModelGeometry


@dataclass
class KnownModels:
    """Configs by lower-case name; an alias such as ``Qwen/Qwen3.6-27B (same dims)`` counts without its remark."""

    configs: Mapping[str, Mapping[str, object]]
    _built: dict[str, ModelGeometry] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> KnownModels:
        """The models of a JSON-lines file with `model`, `config` and optional `aliases`."""
        configs: dict[str, Mapping[str, object]] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.strip():
                continue
            row = json.loads(line)
            for name in (*(row.get("aliases") or ()), row["model"]):
                configs[_key(name)] = row["config"]
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
