"""Test doubles that ship: a scriptable lying engine, a fake clock, builders. Nothing in longproof imports this.

    from longproof.testing.lying_engine import lying_engine
    from longproof.testing.builders import build_timeline

The names below are loaded when they are first used, so that a test of builders does not load a web server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longproof.testing.behaviour import Behaviour
    from longproof.testing.dialects import LLAMACPP, OPENAI, VLLM
    from longproof.testing.fake_clock import FakeClock
    from longproof.testing.fake_pool import OverCapacity
    from longproof.testing.lying_engine import HONEST, LyingEngine
    from longproof.testing.pd_pair import PdPair

__all__ = [
    "HONEST",
    "LLAMACPP",
    "OPENAI",
    "VLLM",
    "Behaviour",
    "FakeClock",
    "LyingEngine",
    "OverCapacity",
    "PdPair",
]

_HOME = {
    "Behaviour": "behaviour",
    "FakeClock": "fake_clock",
    "HONEST": "lying_engine",
    "LLAMACPP": "dialects",
    "LyingEngine": "lying_engine",
    "OPENAI": "dialects",
    "OverCapacity": "fake_pool",
    "PdPair": "pd_pair",
    "VLLM": "dialects",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
