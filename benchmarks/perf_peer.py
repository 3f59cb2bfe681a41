"""The same rows put to AIConfigurator, in its own environment: what it says where it can say something."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from perf_rows import CannotDo, Row, device, layout, model_alias, narrow, needed, weight_format

SCRIPT = Path(__file__).parent / "rivals" / "aiconfigurator_times.py"
SYSTEMS = {
    "h100-sxm": "h100_sxm", "h100-pcie": "h100_pcie", "h200": "h200_sxm", "a100-80gb": "a100_sxm", "l40s": "l40s",
    "b200": "b200_sxm", "b300": "b300_sxm", "gb200": "gb200", "gb300": "gb300", "rtx-pro-6000": "rtx_pro_6000_server",
}  # fmt: skip
"""Device names → AIConfigurator's systems. Others it does not have (H100 at 500 W, H20, consumer cards)."""
SHORT_CONTEXT_TOKENS = 256


@dataclass
class Peer:
    """A running AIConfigurator."""

    python: str

    def __enter__(self) -> Peer:
        self.process = subprocess.Popen(
            [self.python, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()

    def seconds(self, row: Row, kind: str, tokens: int) -> float:
        """One time. Raises CannotDo with AIConfigurator's reason."""
        spread, name = layout(row), device(row).name
        if name not in SYSTEMS:
            raise CannotDo(f"AIConfigurator has no {name}")
        if spread.pcp > 1 or spread.dcp > 1:
            raise CannotDo("AIConfigurator has no context parallelism for this engine")
        asked = {
            "model": model_alias(row), "system": SYSTEMS[name], "kind": kind, "tokens": tokens,
            "cached": row.cached or 0 if kind == "prefill" else 0, "batch": row.batch or 1, "tp": spread.tp,
            "pp": spread.pp, "fp8_cache": narrow(row), "weights": weight_format(row),
        }  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        found = json.loads(self.process.stdout.readline() or '{"reason": "it ended"}')
        if "seconds" not in found:
            raise CannotDo(f"AIConfigurator: {found.get('reason')}")
        return float(found["seconds"])

    def predict(self, row: Row, group: str) -> float:
        """The row's figure in its own unit."""
        unit = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
        if group == "prefill":
            taken = self.seconds(row, "prefill", needed(row.context, "tokens"))
            return needed(row.context, "tokens") / taken if row.unit == "tok/s" else taken / unit[row.unit]
        if row.metric.startswith("itl_slope"):
            far = needed(row.context, "context")
            near = min(20_000, far // 2)
            return (self.seconds(row, "decode", far) - self.seconds(row, "decode", near)) / (far - near) * 1e3
        step = self.seconds(row, "decode", row.context or SHORT_CONTEXT_TOKENS)
        return (row.batch or 1) / step if row.unit == "tok/s" else step / unit[row.unit]
