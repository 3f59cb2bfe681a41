"""AIConfigurator's times, one question per line of stdin, one answer per line of stdout.

    {"model": "llama-3.1-8b", "system": "h100_sxm", "kind": "prefill", "tokens": 1000, "cached": 0, "batch": 1, "tp": 1,
     "pp": 1, "fp8_cache": false, "weights": "bf16"}        →        {"seconds": 0.02}   or   {"reason": "…"}

Run by benchmarks/perf_truth.py --peer with the interpreter of an environment that has aiconfigurator (0.12 was used).
The model is the first of its configurations whose name ends like the alias.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from pathlib import Path

logging.disable(logging.CRITICAL)

import aiconfigurator_core  # noqa: E402 - quiet before it loads
from aiconfigurator.cli.api import cli_estimate  # noqa: E402 - quiet before it loads

CONFIGS = sorted(
    path.name.removesuffix("_config.json").replace("--", "/", 1)
    for path in (Path(aiconfigurator_core.__file__).parent / "model_configs").glob("*_config.json")
)


WEIGHTS = {"nvfp4": "nvfp4", "int4": "int4_wo", "awq": "int4_wo"}
"""Weight formats that differ from the configuration's own → AIConfigurator's quantisation modes."""


def plain(name: str) -> str:
    """Letters and digits alone."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def estimate(model: str, asked: dict[str, object], **more: int):
    """One static estimate, prefill or one decode step."""
    prefill = asked["kind"] == "prefill"
    return cli_estimate(
        model,
        str(asked["system"]),
        mode="static_ctx" if prefill else "static_gen",
        backend_name="vllm",
        isl=max(1, int(asked["tokens"])),  # type: ignore[call-overload]
        prefix=int(asked["cached"]) if prefill else 0,  # type: ignore[call-overload]
        osl=1 if prefill else 2,
        batch_size=int(asked["batch"]),  # type: ignore[call-overload]
        tp_size=int(asked["tp"]),  # type: ignore[call-overload]
        pp_size=int(asked["pp"]),  # type: ignore[call-overload]
        kvcache_quant_mode="fp8" if asked["fp8_cache"] else None,
        gemm_quant_mode=WEIGHTS.get(str(asked["weights"])),
        moe_quant_mode=WEIGHTS.get(str(asked["weights"])) if more else None,
        **more,
    )


def answer(asked: dict[str, object]) -> dict[str, object]:
    """One question."""
    wanted = plain(str(asked["model"]))
    ending = re.compile(rf"{re.escape(wanted)}(a\d+b)?(instruct|hf|fp8|bf16)*$")
    models = [name for name in CONFIGS if ending.search(plain(name))]
    if not models:
        return {"reason": f"no configuration of {asked['model']}"}
    try:
        found = estimate(models[0], asked)
    except ValueError as error:
        if "moe_tp_size" not in str(error):
            return {"reason": f"ValueError: {str(error)[:60]}"}
        try:  # a mixture: its experts split like everything else
            found = estimate(models[0], asked, moe_tp_size=int(asked["tp"]), moe_ep_size=1)  # type: ignore[call-overload]
        except Exception as error:
            return {"reason": f"{type(error).__name__}: {str(error)[:60]}"}
    except Exception as error:
        return {"reason": f"{type(error).__name__}: {str(error)[:60]}"}
    prefill = asked["kind"] == "prefill"
    return {"seconds": (found.ttft if prefill else found.tpot) / 1e3}


print("{}", flush=True)
for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
