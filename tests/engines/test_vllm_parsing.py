"""The vLLM adapter against recorded answers of vLLM 0.32.0, from a local server; tests/vllm has the real one."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from longproof.domain.deployment import EngineKind
from longproof.domain.measure import Measured, Provenance, Unknown, value_or_none
from longproof.domain.request import ChatMessage, ChatPrompt, GenerationRequest, IdsPrompt, TextPrompt
from longproof.engines.known import joined
from longproof.engines.link import Link
from longproof.engines.served import ServedModel
from longproof.engines.vllm import VllmEngine
from longproof.engines.vllm_facts import Told, cache_labels, deployment, deployment_of_log
from longproof.engines.vllm_log import StartupLog, read_startup_log
from longproof.errors import EngineProtocolError

RECORDED = Path(__file__).parent / "vllm_0_32"
METRICS = (RECORDED / "metrics.txt").read_text()
LOG = (RECORDED / "startup.log").read_text()
SERVER_INFO = json.loads((RECORDED / "server_info.json").read_text())
MODELS = {"object": "list", "data": [{"id": "m", "owned_by": "vllm", "root": "/models/smollm2", "max_model_len": 8192}]}
# what 0.32.0 makes of the user message "Hi": a default system message, roles, and the generation prompt
HI_IDS = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411]
HI_IDS += [407, 19712, 8182, 2, 198, 1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198]


class Replay:
    """A server that answers by path and keeps what it was asked. An answer may be a function of the body; a path
    without one is a 404."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {
            "/version": {"version": "0.32.0"},
            "/v1/models": MODELS,
            "/metrics": METRICS,
            "/v1/completions": {"choices": [], "system_fingerprint": "vllm-0.32.0-ad5009d1"},
        }
        self.asked: list[tuple[str, dict[str, object]]] = []
        replay = self

        class Answerer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                replay.asked.append((self.path, body))
                self._answer(body)

            def _answer(self, asked: dict[str, object] | None = None) -> None:
                found = replay.answers.get(self.path.partition("?")[0])
                found = found(asked) if callable(found) else found
                body = (
                    found.encode() if isinstance(found, str) else json.dumps(found or {"detail": "Not Found"}).encode()
                )
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_request(self, code: object = "-", size: object = "-") -> None:
                """Nothing on stderr."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answerer)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def replay() -> Iterator[Replay]:
    replay = Replay()
    thread = threading.Thread(target=replay.server.serve_forever, args=(0.02,))
    thread.start()
    yield replay
    replay.server.shutdown()
    replay.server.server_close()
    thread.join()


@pytest.fixture
async def engine(replay: Replay) -> AsyncIterator[VllmEngine]:
    engine = VllmEngine(Link(replay.url), model="m")
    yield engine
    await engine.aclose()


def told(
    *,
    cache: tuple[dict[str, str], ...] = (),
    config: dict[str, object] | None = None,
    fingerprint: str | None = None,
    limit: int | None = 8192,
) -> Told:
    return Told(
        model=ServedModel(id="m", names=("m",), owned_by="vllm", server=None, fields={"max_model_len": limit}),
        version="0.32.0",
        cache=cache,
        config=config,
        fingerprint=fingerprint,
        chat_template=None,
    )


# -- the start-up log -------------------------------------------------------------------------------------------------


def test_startup_log_gives_capacity_and_configuration_when_it_is_of_0_32():
    log = read_startup_log(LOG)
    assert (log.kv_tokens, log.concurrency, log.concurrency_tokens) == (46_592, 5.69, 8_192)
    assert (log.version, log.dtype, log.max_model_len) == ("0.32.0", "bfloat16", 8_192)
    assert (log.tensor_parallel, log.pipeline_parallel, log.data_parallel) == (1, 1, 1)
    assert (log.prefix_caching, log.enforce_eager, log.quantization) == (True, True, None)
    assert (log.max_batched_tokens, log.max_num_seqs) == (None, None)  # not set by hand, so not printed


def test_startup_log_gives_capacity_when_older_releases_print_two_lines():
    text = (
        "INFO 07-01 [kv_cache_utils.py:716] GPU KV cache size: 341,504 tokens\n"
        "INFO 07-01 [kv_cache_utils.py:720] Maximum concurrency for 131,072 tokens per request: 2.61x\n"
        "INFO 07-01 [scheduler.py:224] Chunked prefill is enabled with max_num_batched_tokens=8192.\n"
    )
    log = read_startup_log(text)
    assert (log.kv_tokens, log.concurrency_tokens, log.concurrency) == (341_504, 131_072, 2.61)
    assert log.max_batched_tokens == 8_192


def test_startup_log_gives_limits_when_they_were_set_by_hand():
    log = read_startup_log(
        "non-default args: {'max_num_seqs': 4, 'max_num_batched_tokens': 512, 'api_key': ['secret']}"
    )
    assert (log.max_num_seqs, log.max_batched_tokens) == (4, 512)


def test_startup_log_describes_the_last_start_when_it_holds_two():
    log = read_startup_log(LOG + LOG.replace("46,592", "69,888").replace("5.69x", "8.53x"))
    assert (log.kv_tokens, log.concurrency) == (69_888, 8.53)


def test_startup_log_reads_through_colours_when_a_terminal_coloured_it():
    assert read_startup_log("\x1b[36mGPU KV cache size: \x1b[0m1,024 tokens").kv_tokens == 1_024


@pytest.mark.parametrize("text", ["", "Traceback (most recent call last):\n  ...", "KV cache size: tokens"])
def test_startup_log_says_nothing_when_nothing_is_there(text: str):
    assert read_startup_log(text) == StartupLog()


# -- capacity ---------------------------------------------------------------------------------------------------------


def test_capacity_is_blocks_times_block_size_when_there_is_one_kind_of_layer():
    facts = deployment(told(cache=cache_labels(METRICS)))
    # 1 GiB / (30 layers × 98,304 B a block) = 364 blocks of 128 tokens
    assert isinstance(facts.kv_capacity_tokens, Measured)
    assert (facts.kv_capacity_tokens.value, facts.kv_capacity_tokens.provenance) == (46_592, Provenance.DERIVED)
    assert value_or_none(facts.kv_blocks) == 364
    assert value_or_none(facts.block_size_tokens) == 128
    assert value_or_none(facts.other["kv_usable_tokens"]) == "46464"  # 363 × 128: the null block holds nothing


def test_capacity_is_blocks_times_block_size_when_the_window_is_no_multiple_of_the_block():
    # a request of 8,000 takes 63 blocks: 364 / 63 × 8,000 = 46,222; the pool is 364 × 128 = 46,592 all the same
    labels = {"num_gpu_blocks": "364", "block_size": "128", "kv_cache_size_tokens": "46222"}
    facts = deployment(told(cache=(labels,), limit=8_000))
    assert value_or_none(facts.kv_capacity_tokens) == 46_592


def test_capacity_is_the_engines_count_when_groups_of_layers_share_the_pool():
    # Gemma-3-270m, window 32,768: 361 of 2,730 blocks for one request: 7.5623 × 32,768 = 247,801, not 349,440
    labels = {"num_gpu_blocks": "2730", "block_size": "128", "kv_cache_size_tokens": "247801"}
    facts = deployment(told(cache=(labels,), limit=32_768))
    assert isinstance(facts.kv_capacity_tokens, Measured)
    assert (facts.kv_capacity_tokens.value, facts.kv_capacity_tokens.provenance) == (247_801, Provenance.REPORTED)
    assert "349440" in facts.kv_capacity_tokens.source


def test_capacity_is_the_smallest_when_data_parallel_engines_differ():
    engines = tuple({"num_gpu_blocks": str(n), "block_size": "16"} for n in (1_000, 990))
    facts = deployment(told(cache=engines))
    assert value_or_none(facts.kv_capacity_tokens) == 15_840  # 990 × 16
    assert isinstance(facts.kv_blocks, Measured)
    assert "smallest of 2" in facts.kv_blocks.source


def test_capacity_is_unknown_with_the_reason_when_there_are_no_metrics():
    facts = deployment(told())
    assert facts.kv_capacity_tokens == Unknown(reason="/metrics has no vllm:cache_config_info")
    assert facts.kv_blocks == facts.block_size_tokens == facts.kv_capacity_tokens


def test_capacity_is_unknown_when_the_engine_has_not_sized_its_pool():
    facts = deployment(told(cache=({"num_gpu_blocks": "None", "block_size": "16"},)))
    assert facts.kv_capacity_tokens == Unknown(reason="vllm:cache_config_info has no num_gpu_blocks")


# -- other facts ------------------------------------------------------------------------------------------------------


def test_deployment_says_what_every_server_tells_when_there_is_no_more():
    facts = deployment(told(cache=cache_labels(METRICS), fingerprint="vllm-0.32.0-ad5009d1"))
    assert facts.engine is EngineKind.VLLM
    assert value_or_none(facts.engine_version) == "0.32.0"
    assert value_or_none(facts.engine_build) == "vllm-0.32.0-ad5009d1"
    assert value_or_none(facts.configured_limit_tokens) == 8_192
    assert value_or_none(facts.prefix_caching) is True
    assert isinstance(facts.kv_dtype, Unknown)
    assert "auto" in facts.kv_dtype.reason
    assert value_or_none(facts.other["cache_dtype"]) == "auto"
    assert value_or_none(facts.other["prefix_caching_hash_algo"]) == "sha256"
    assert value_or_none(facts.other["gpu_memory_utilization"]) == "0.92"
    assert "sliding_window" not in facts.other  # "None" is no value
    for unknown in (facts.slots, facts.max_batched_tokens, facts.layout, facts.weight_dtype):
        assert isinstance(unknown, Unknown)
        assert "/server_info" in unknown.reason


def test_deployment_says_the_rest_when_the_server_is_in_developer_mode():
    facts = deployment(told(cache=cache_labels(METRICS), config=SERVER_INFO["vllm_config"]))
    assert value_or_none(facts.slots) == 128
    assert value_or_none(facts.max_batched_tokens) == 2_048
    assert value_or_none(facts.layout) == "tp1 pp1 dp1"
    assert value_or_none(facts.weight_dtype) == "bfloat16"
    assert value_or_none(facts.kv_dtype) == "bfloat16"  # auto, and no quantization that could decide otherwise
    assert value_or_none(facts.other["policy"]) == "fcfs"
    assert value_or_none(facts.other["enforce_eager"]) == "True"


def test_deployment_says_the_rest_when_the_startup_log_joins_in():
    facts = joined(deployment(told(cache=cache_labels(METRICS))), deployment_of_log(LOG))
    assert value_or_none(facts.layout) == "tp1 pp1 dp1"
    assert value_or_none(facts.weight_dtype) == "bfloat16"
    assert value_or_none(facts.kv_dtype) == "bfloat16"
    assert value_or_none(facts.other["log_kv_tokens"]) == "46592"
    assert value_or_none(facts.other["log_max_concurrency"]) == "5.69"


def test_deployment_says_both_when_the_log_counts_other_tokens_than_the_pool_has():
    # a window of 8,000 in blocks of 128: the log's count is 46,222, the pool 364 × 128 = 46,592
    labels = {"num_gpu_blocks": "364", "block_size": "128", "kv_cache_size_tokens": "46222"}
    log = "CPU KV cache size: 46,222 tokens, Maximum concurrency for 8,000 tokens per request: 5.78x"
    facts = joined(deployment(told(cache=(labels,), limit=8_000)), deployment_of_log(log))
    assert value_or_none(facts.kv_capacity_tokens) == 46_592
    assert value_or_none(facts.other["log_kv_tokens"]) == "46222"
    assert value_or_none(facts.other["kv_capacity_tokens (derived)"]) == "46222"


def test_deployment_has_the_logs_capacity_when_the_metrics_cannot_be_reached():
    facts = joined(deployment(told()), deployment_of_log(LOG))
    assert value_or_none(facts.kv_capacity_tokens) == 46_592


def test_kv_dtype_is_the_checkpoints_affair_when_weights_are_quantized():
    config: dict[str, object] = {"model_config": {"dtype": "torch.bfloat16", "quantization": "fp8"}}
    facts = deployment(told(cache=({"cache_dtype": "auto"},), config=config))
    assert isinstance(facts.kv_dtype, Unknown)
    assert "fp8 checkpoint decides" in facts.kv_dtype.reason


def test_layout_names_what_is_parallel_when_the_configuration_says_so():
    parallel = {
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 2,
        "data_parallel_size": 1,
        "decode_context_parallel_size": 4,
        "prefill_context_parallel_size": 1,
        "enable_expert_parallel": True,
    }
    assert value_or_none(deployment(told(config={"parallel_config": parallel})).layout) == "tp8 pp2 dp1 dcp4 ep"


def test_layout_comes_from_the_fingerprint_when_nothing_else_names_it():
    assert value_or_none(deployment(told(fingerprint="vllm-0.32.0-tp2-pp4-1a2b3c4d")).layout) == "tp2 pp4"


@pytest.mark.parametrize("text", ["", "# nothing", "vllm:cache_config_info{block_size=", "llamacpp:n 1\n"])
def test_cache_labels_are_empty_when_the_metrics_have_none(text: str):
    assert cache_labels(text) == ()


# -- over HTTP --------------------------------------------------------------------------------------------------------


async def test_introspect_fills_what_is_served_when_the_server_is_plain(replay: Replay, engine: VllmEngine):
    facts = await engine.introspect()
    assert value_or_none(facts.kv_capacity_tokens) == 46_592
    assert value_or_none(facts.model_file) == "/models/smollm2"
    assert value_or_none(facts.engine_build) == "vllm-0.32.0-ad5009d1"
    assert engine.capabilities.aborts is False
    assert replay.asked == [("/v1/completions", {"model": "m", "prompt": "Hi", "max_tokens": 1, "temperature": 0})]


async def test_introspect_knows_abort_and_template_when_the_server_is_in_developer_mode(
    replay: Replay, engine: VllmEngine
):
    replay.answers["/openapi.json"] = {"paths": {"/abort_requests": {}}}
    replay.answers["/server_info"] = SERVER_INFO
    replay.answers["/tokenizer_info"] = {"chat_template": "{{ messages }}"}
    facts = await engine.introspect()
    assert engine.capabilities.aborts is True
    assert value_or_none(facts.slots) == 128
    # printf '{{ messages }}' | sha256sum
    expected = "f24189f08c85a1eb19a737306c3a13e85462ee33d964f28108d64a2485fa2171"
    assert value_or_none(facts.chat_template_sha256) == expected


async def test_count_separates_content_from_template_when_a_chat_is_counted(replay: Replay, engine: VllmEngine):
    replay.answers["/tokenize"] = lambda body: {"tokens": HI_IDS if "messages" in body else [26843]}
    counted = await engine.count(ChatPrompt(messages=(ChatMessage(role="user", content="Hi"),)))
    assert (counted.total, counted.content, counted.template, counted.special) == (31, 1, 30, None)
    assert [body for _, body in replay.asked] == [
        {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True},
        {"model": "m", "prompt": "Hi", "add_special_tokens": False},
    ]


async def test_count_needs_no_server_when_ids_are_sent(replay: Replay, engine: VllmEngine):
    assert (await engine.count(IdsPrompt(ids=(5, 6, 7)))).total == 3
    assert replay.asked == []


@pytest.mark.parametrize("answer", [{"count": 3}, {"tokens": ["a"]}, {"tokens": [1, None]}, {"tokens": 3}])
async def test_count_raises_when_the_answer_has_no_ids(replay: Replay, engine: VllmEngine, answer: dict[str, object]):
    replay.answers["/tokenize"] = answer
    with pytest.raises(EngineProtocolError, match="without token ids"):
        await engine.count(TextPrompt(text="x"))


async def test_sample_keeps_sums_and_leaves_buckets_out_when_metrics_are_scraped(engine: VllmEngine):
    sample = await engine.sample()
    assert (sample.running, sample.waiting, sample.kv_usage) == (0, 0, 0.0)
    assert sample.values['vllm:time_to_first_token_seconds_count{engine="0",model_name="m"}'] == 3
    assert sample.values['vllm:prompt_tokens_total{engine="0",model_name="m"}'] == 35
    assert not [name for name in sample.values if "_bucket" in name or "_created" in name or "_info" in name]
    assert all(name.startswith("vllm:") for name in sample.values)


async def test_sample_raises_when_there_are_no_metrics(replay: Replay, engine: VllmEngine):
    del replay.answers["/metrics"]
    with pytest.raises(EngineProtocolError):
        await engine.sample()


async def test_abort_is_false_when_the_server_has_no_such_route(engine: VllmEngine):
    assert await engine.abort("cmpl-1") is False


async def test_abort_names_chat_and_completion_ids_when_the_route_is_there(replay: Replay, engine: VllmEngine):
    replay.answers["/abort_requests"] = {"status": "aborted", "aborted": 2}
    assert await engine.abort("cmpl-1") is True
    ids = ["cmpl-1", "cmpl-1-0", "chatcmpl-cmpl-1", "cmpl-cmpl-1-0"]
    assert replay.asked == [("/abort_requests", {"request_ids": ids})]


async def test_abort_asks_nothing_when_the_id_is_empty(replay: Replay, engine: VllmEngine):
    replay.answers["/abort_requests"] = {"status": "aborted", "aborted": 9}
    assert await engine.abort("") is False  # vLLM would read it as "abort everything"
    assert replay.asked == []


def test_body_is_in_vllms_dialect_when_output_is_exact_and_the_prompt_cold():
    engine = VllmEngine(Link("http://127.0.0.1:1"), model="m")
    request = GenerationRequest(prompt=IdsPrompt(ids=(1, 2)), max_tokens=4, cold=True, top_logprobs=2)
    body = engine.body(request, "abc")
    assert body["ignore_eos"] is True
    assert "min_tokens" not in body
    assert body["cache_salt"] == "abc"
    assert body["logprobs"] == 2
    assert engine.request_headers("abc") == {"X-Request-Id": "abc"}
