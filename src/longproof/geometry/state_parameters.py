"""How many weights a recurrent or convolution layer has. Counted as in transformers 5.19's modeling files."""

from __future__ import annotations

import math

from longproof.geometry.config_fields import ConfigFields
from longproof.geometry.kinds import LayerKind, RecurrentState


def state_elements(fields: ConfigFields, state: RecurrentState, hidden: int) -> int:
    """Elements of the mixer that keeps this state, without norms shared by all layers."""
    inner = state.heads * state.head_dim
    keys = state.groups * state.state_dim
    convolution = state.conv_channels * state.conv_kernel
    match state.kind:
        case LayerKind.GDN:
            # in_proj_qkvz, in_proj_ba, conv1d, dt_bias and A_log, norm, out_proj
            into = hidden * (2 * keys + 2 * inner) + hidden * 2 * state.heads
            return into + convolution + 2 * state.heads + state.head_dim + inner * hidden
        case LayerKind.KDA:
            # q, k, v; the decay's and the gate's low-rank pairs; beta; A_log and dt_bias; norm; out
            into = hidden * (2 * keys + inner) + convolution
            low_rank = 2 * (hidden * state.head_dim + state.head_dim * inner)
            return into + low_rank + hidden * state.heads + state.heads + inner + state.head_dim + inner * hidden
        case LayerKind.LINEAR:
            return hidden * 3 * inner + hidden * inner + inner * hidden + inner
        case LayerKind.MAMBA1:
            return _mamba1(fields, state, hidden)
        case LayerKind.MAMBA2:
            into = hidden * (2 * inner + 2 * keys + state.heads)
            norm = 0 if fields.model_type == "falcon_h1" and not fields.flag("mamba_rms_norm") else inner
            return into + convolution + state.conv_channels + 3 * state.heads + norm + inner * hidden
        case _:
            return hidden * 3 * inner + convolution + inner * hidden


def _mamba1(fields: ConfigFields, state: RecurrentState, hidden: int) -> int:
    inner = state.heads
    rank = fields.value("mamba_dt_rank") or fields.value("time_step_rank")
    steps = rank if isinstance(rank, int) else math.ceil(hidden / 16)
    convolution = inner * state.conv_kernel + inner
    selected = inner * (steps + 2 * state.state_dim) + steps * inner + inner
    norms = steps + 2 * state.state_dim if fields.model_type == "jamba" else 0
    return hidden * 2 * inner + convolution + selected + norms + inner * state.state_dim + inner + inner * hidden
