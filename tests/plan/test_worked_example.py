"""The common worked example, recomputed: "32,000 x 80 x 0.5 = 1.28 GB per session, 40 sessions, 20 GB of weights, one
80 GB device". The 0.5 is half a kilobyte per token and layer, not half a byte: FP8, 2 KV heads of 128, K and V."""

from __future__ import annotations

from longproof.domain.measure import Measured
from longproof.domain.shapes import RequestShape
from longproof.domain.verdict import Admit, Queue
from longproof.geometry.dtypes import KvDtype
from longproof.geometry.footprint import growth_bytes_per_token, kv_bytes
from longproof.plan.capacity import Launch, Layout, PlanEngine, same_budget
from longproof.plan.sglang_rules import plan_sglang, rest_bytes
from longproof.policy.admission import AdmissionRule, decide, reserved_tokens
from longproof.policy.ledger import Ledger, Pool
from longproof.testing import geometries

MODEL = geometries.uniform(80, 2, 128)
GB = 10**9


def test_a_session_takes_1_31_gb_when_a_token_takes_512_bytes_per_layer() -> None:
    assert growth_bytes_per_token(MODEL.layers, KvDtype.FP8) == 80 * 512  # 2 heads x 128 x 2 x 1 byte
    session = kv_bytes(MODEL.layers, 32_000, KvDtype.FP8)
    assert session == 1_310_720_000  # 1.31 GB; the text's 1.28 GB takes 500 for 512
    assert round(32_000 * 80 * 0.5 / GB, 5) == 0.00128  # with half a byte it is 1.28 MB: a thousand times less
    assert kv_bytes(MODEL.layers, 32_000, KvDtype.BFLOAT16) == 2 * session


def test_forty_sessions_fit_barely_when_all_memory_but_the_weights_is_cache() -> None:
    # (80 - 20) GB / 40,960 B = 1,464,843 tokens; 40 x 32,000 = 1,280,000 leave 184,843 (5 more sessions)
    launch = Launch(engine=PlanEngine.SGLANG, kv_dtype="fp8", layout=Layout(), max_model_len_tokens=32_000)
    everything = plan_sglang(MODEL, launch, same_budget(launch.layout, 60 * GB, "80 GB - 20 GB of weights"))
    assert isinstance(everything.tokens, Measured)
    assert everything.tokens.value == 1_464_843
    assert everything.tokens.value // 32_000 == 45
    # With a static fraction of 0.9 the engine keeps 8 GB for itself: 52 GB are 1,269,531 tokens, and 40 do not fit.
    usual = plan_sglang(MODEL, launch, same_budget(launch.layout, rest_bytes(60 * GB, 80 * GB, 0.9), "fraction 0.9"))
    assert isinstance(usual.tokens, Measured)
    assert usual.tokens.value == 1_269_531
    assert usual.tokens.value // 32_000 == 39


def test_twice_the_length_halves_the_sessions_and_queues_the_rest_when_it_is_64k() -> None:
    assert kv_bytes(MODEL.layers, 64_000, KvDtype.FP8) == 2_621_440_000  # 40 of them are 104.9 GB
    ledger = Ledger.of([Pool(stage="kv", capacity_blocks=60 * GB // 40_960)])
    rule = AdmissionRule(limit_tokens=128_000)
    shape = RequestShape(content_tokens=63_000, output_tokens=1_000)
    admitted = 0
    while isinstance(decide(shape, ledger.states(), rule), Admit):
        ledger.reserve(f"session {admitted}", reserved_tokens(shape, ledger.states(), rule))
        admitted += 1
    assert admitted == 22  # 1,464,843 / 64,000
    verdict = decide(shape, ledger.states(), rule)
    assert isinstance(verdict, Queue)
    assert (verdict.binding.needed, verdict.binding.available) == (64_000, 56_843)  # 1,464,843 - 22 x 64,000
