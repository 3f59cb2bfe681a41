"""llama.cpp's start-up log is read for what its API does not tell."""

from __future__ import annotations

import pytest

from longproof.engines.embedded_log import CacheKind, LlamaCppLogFacts, parse_llamacpp_log

START = "0.00.000.300 I srv          init: initializing ...\n"
# the lines of a model with sliding-window layers: 8,192 cells full, window 1,024 × 4 slots + ubatch 512 = 4,608 sliding
SLIDING = """\
0.00.1 I llama_kv_cache_iswa: creating non-SWA KV cache, size = 8192 cells
0.00.2 I llama_kv_cache:        CPU KV buffer size =    68.00 MiB
0.00.3 I llama_kv_cache: size =   68.00 MiB (  8192 cells,   8 layers,  4/1 seqs), \
K (q8_0):   34.00 MiB, V (q8_0):   34.00 MiB
0.00.4 I llama_kv_cache_iswa: creating     SWA KV cache, size = 4608 cells
0.00.5 I llama_kv_cache: size =  765.00 MiB (  4608 cells,  40 layers,  4/1 seqs), \
K (f16):  382.50 MiB, V (f16):  382.50 MiB
"""
# the lines of a hybrid model: every fourth layer attention, the others recurrent
HYBRID = """\
0.00.1 I llama_kv_cache: size =  512.00 MiB (  8192 cells,  16 layers,  1/1 seqs), \
K (f16):  256.00 MiB, V (f16):  256.00 MiB
0.00.2 I llama_memory_recurrent: size =   50.25 MiB (     1 cells,  32 layers,  1 seqs  0 rs_seq), \
R (f32):    2.25 MiB, S (f32):   48.00 MiB
"""


def test_full_and_sliding_caches_are_told_apart_when_the_model_has_both() -> None:
    facts = parse_llamacpp_log(START + SLIDING)
    full, sliding = facts.kv_caches
    assert (full.kind, full.cells, full.layers, full.k_type) == (CacheKind.FULL, 8_192, 8, "q8_0")
    assert (sliding.kind, sliding.cells, sliding.layers, sliding.v_type) == (CacheKind.SLIDING, 4_608, 40, "f16")
    assert facts.kv_capacity_tokens == 8_192  # the sliding cache limits no prompt
    assert facts.kv_bytes == (68 + 765) * 1_048_576


def test_the_recurrent_state_is_read_when_the_model_is_a_hybrid() -> None:
    facts = parse_llamacpp_log(START + HYBRID)
    (state,) = facts.recurrent
    assert (state.cells, state.layers, state.slots, state.r_type) == (1, 32, 1, "f32")
    assert state.size_bytes == 50.25 * 1_048_576
    assert facts.kv_bytes == 562.25 * 1_048_576
    assert facts.kv_capacity_tokens == 8_192


def test_only_the_last_start_counts_when_the_log_has_several() -> None:
    assert parse_llamacpp_log(START + SLIDING + START + HYBRID) == parse_llamacpp_log(START + HYBRID)
    assert parse_llamacpp_log(START + SLIDING + START) == LlamaCppLogFacts()


@pytest.mark.parametrize("text", ["", "Segmentation fault", START, "llama_kv_cache: size = what"])
def test_every_fact_is_none_when_the_log_says_nothing(text: str) -> None:
    facts = parse_llamacpp_log(text)
    assert facts == LlamaCppLogFacts()
    assert facts.kv_capacity_tokens is None
    assert facts.kv_bytes is None
