"""`longproof demo`: the main job on the embedded engine, from nothing to a report."""

from __future__ import annotations

from typing import Any

import click

from longproof.cli.options import TokensType, json_option, proof_options
from longproof.cli.options_load import load_options
from longproof.cli.options_quality import quality_options

DEMO_WINDOW_TOKENS = 3_072
UNDER_LOAD_WINDOW_TOKENS = 1_792
"""With it the whole protocol, all probes under load included, ends within ten minutes on two cores."""
DEMO_PROBES = "accounting,boundary,speed,warmth,quality"
"""What a first look needs, within minutes on two cores; --only names others."""
DEMO_FAMILIES = "literal,multi-key-dense,absent"
"""One that this model holds, one that it loses as longer texts hold more keys, and one that it cannot do at all."""
DEMO_QUALITY_LENGTHS = (160, 512, 1_152)
"""2, 8 and 18 keys. Eight answers of two families at these are 29,000 tokens: 80 s on two cores."""


@click.command(short_help="Start the embedded engine with a small model and prove it.")
@click.option(
    "--model", metavar="MODEL", help="GGUF path or hf://owner/repo/file.gguf; default: SmolLM2-135M-Instruct Q4_1."
)
@click.option(
    "--window",
    type=TokensType(),
    help="Context of one slot that the engine is started with; default: 3,072, or 1,792 with probes under load.",
)
@click.option("--slots", type=int, default=1, show_default=True, help="Sequences that may run together.")
@click.option("--kv-type", default="f16", show_default=True, help="KV cache type: f16, bf16, q8_0, q4_0 …")
@click.option("--kv-unified", is_flag=True, help="One KV pool for all slots instead of one each.")
@click.option("--threads", type=int, help="CPU threads; default: all cores.")
@proof_options
@load_options
@quality_options
@json_option
def demo(as_json: bool, **choices: Any) -> int:
    """Start the embedded llama.cpp with a real small model, prove it, and end with a claim and a report.

    The first run downloads the model (about 93 MB); afterwards no network is needed. The engine serves a window of
    3,072 of the 8,192 tokens that the model was trained for (1,792 with probes under load), so that the demo ends
    within minutes on two cores.
    """
    from longproof.cli.proving import proof_options_from, prove_and_show
    from longproof.prove.target import EmbeddedTarget

    choices["only"] = choices["only"] or DEMO_PROBES
    choices["window"] = choices["window"] or window_for(choices["only"])
    target = EmbeddedTarget(
        model=choices["model"],
        window_tokens=choices["window"],
        slots=choices["slots"],
        kv_type=choices["kv_type"],
        kv_unified=choices["kv_unified"],
        threads=choices["threads"],
    )
    choices["families"] = choices["families"] or DEMO_FAMILIES
    choices["quality_lengths"] = choices["quality_lengths"] or _fitting(choices["window"])
    return prove_and_show(target, proof_options_from(choices), out=choices["out"], as_json=as_json)


def window_for(only: str) -> int:
    """The window, in tokens, that such probes are shown with when nobody chose one."""
    from longproof.prove.options import LOAD_PROBES

    chosen = {probe.strip() for probe in only.split(",")}
    return UNDER_LOAD_WINDOW_TOKENS if chosen.intersection(LOAD_PROBES) else DEMO_WINDOW_TOKENS


def _fitting(window_tokens: int) -> tuple[int, ...] | None:
    """The demo's lengths, the longest shortened where a smaller window does not hold it; None leaves the choice to the
    protocol."""
    longest = min(DEMO_QUALITY_LENGTHS[-1], window_tokens - 256)
    fitting = tuple(length for length in DEMO_QUALITY_LENGTHS if length < longest)
    return (*fitting, longest) if fitting else None
