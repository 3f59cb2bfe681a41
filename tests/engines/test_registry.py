"""connect(): what it recognises, and what it says when there is nothing to connect to."""

from __future__ import annotations

from pathlib import Path

import pytest

from longproof.domain.deployment import Deployment, EngineKind
from longproof.domain.measure import given, value_or_none
from longproof.engines.base import Engine
from longproof.engines.llamacpp import LlamaCppEngine
from longproof.engines.openai import OpenAIEngine
from longproof.engines.registry import connect
from longproof.engines.sglang import SglangEngine
from longproof.engines.vllm import VllmEngine
from longproof.errors import ModelFileError, TargetError, UsageError
from longproof.testing.scripted_http import Answer, Reply, ScriptedHttp

MODELS = "GET /v1/models"


def models(*ids: str, **fields: object) -> Reply:
    return Reply.json({"object": "list", "data": [{"id": name, "object": "model", **fields} for name in ids]})


async def connected(routes: dict[str, Answer], **options: object) -> Engine:
    async with ScriptedHttp(routes) as server:
        engine = await connect(server.url, **options)  # type: ignore[arg-type]
        await engine.aclose()
        return engine


async def refused(routes: dict[str, Answer], **options: object) -> TargetError:
    async with ScriptedHttp(routes) as server:
        with pytest.raises(TargetError) as found:
            await connect(server.url + "/v1/", **options)  # type: ignore[arg-type]
        assert server.url in found.value.problem
        assert found.value.advice
        return found.value


# -- which dialect -----------------------------------------------------------------------------------------------------

PROPS = Reply.json({"total_slots": 1, "default_generation_settings": {"n_ctx": 512}})
SERVER_INFO = Reply.json({"version": "0.5.23", "max_total_num_tokens": 9000})
VLLM_METRICS = Reply.text('# HELP x y\nvllm:num_requests_running{engine="0"} 0.0\n')


@pytest.mark.parametrize(
    ("routes", "kind"),
    [
        ({MODELS: models("m", owned_by="llamacpp"), "GET /props": PROPS}, LlamaCppEngine),
        ({MODELS: models("m"), "GET /props": PROPS}, LlamaCppEngine),
        ({MODELS: models("m", owned_by="sglang"), "GET /server_info": SERVER_INFO}, SglangEngine),
        ({MODELS: models("m"), "GET /server_info": SERVER_INFO}, SglangEngine),
        ({MODELS: models("m"), "GET /get_server_info": SERVER_INFO}, SglangEngine),
        ({MODELS: models("m", owned_by="vllm"), "GET /metrics": VLLM_METRICS}, VllmEngine),
        ({MODELS: models("m", owned_by="me"), "GET /metrics": VLLM_METRICS}, VllmEngine),
        ({MODELS: models("m", owned_by="openai")}, OpenAIEngine),
    ],
)
async def test_dialect_is_recognised_when_the_server_shows_it(
    routes: dict[str, Answer], kind: type[OpenAIEngine]
) -> None:
    engine = await connected(routes)
    assert type(engine) is kind
    assert engine.model == "m"
    assert engine.capabilities.counts is (kind is not OpenAIEngine)


@pytest.mark.parametrize(
    ("owner", "kind"), [("llamacpp", LlamaCppEngine), ("sglang", SglangEngine), ("vllm", VllmEngine)]
)
async def test_dialect_is_kept_without_its_own_routes_when_a_proxy_passes_only_v1(
    owner: str, kind: type[OpenAIEngine]
) -> None:
    engine = await connected({MODELS: models("m", owned_by=owner)})
    assert type(engine) is kind
    found = engine.capabilities
    assert (found.counts, found.metrics, found.aborts) == (False, False, False)
    assert found.exact_output  # what stands in the body of a request still gets through
    with pytest.raises(UsageError, match="does not count"):
        await engine.tokenize("x")


async def test_dialect_is_plain_openai_when_a_proxy_answers_every_path_with_a_page() -> None:
    page = Reply.text("<html>welcome</html>", content_type="text/html")
    paths = ("/props", "/server_info", "/get_server_info", "/version", "/metrics")
    engine = await connected({MODELS: models("m"), **{f"GET {path}": page for path in paths}})
    assert type(engine) is OpenAIEngine


async def test_dialect_is_plain_openai_when_other_routes_break_the_connection() -> None:
    paths = ("/props", "/server_info", "/get_server_info", "/version", "/metrics")
    engine = await connected({MODELS: models("m"), **{f"GET {path}": Reply(reset="now") for path in paths}})
    assert type(engine) is OpenAIEngine


# -- which model -------------------------------------------------------------------------------------------------------


async def test_model_is_the_only_one_when_none_is_named() -> None:
    assert (await connected({MODELS: models("only")})).model == "only"


async def test_model_is_the_named_one_when_several_are_served() -> None:
    assert (await connected({MODELS: models("a", "b")}, model="b")).model == "b"


async def test_model_may_be_an_alias() -> None:
    assert (await connected({MODELS: models("a", aliases=["a", "short"])}, model="short")).model == "short"


async def test_models_are_listed_when_several_are_served_and_none_is_named() -> None:
    error = await refused({MODELS: models("a", "b")})
    assert "2 models: a, b" in error.problem
    assert "--model" in error.advice


async def test_models_are_listed_when_the_named_one_is_unknown() -> None:
    error = await refused({MODELS: models(*(f"m{n}" for n in range(14)))}, model="x")
    assert "does not serve 'x'" in error.problem
    assert "m11 and 2 more" in error.problem  # 12 are listed


# -- nothing to connect to ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [401, 403])
async def test_error_names_the_key_option_when_the_key_is_refused(status: int) -> None:
    error = await refused({MODELS: Reply.json({"error": {"message": "bad key"}}, status=status)}, api_key="k")
    assert f"refuses the API key with {status}: bad key" in error.problem
    assert "--api-key-env" in error.advice


@pytest.mark.parametrize(
    "answer",
    [
        Reply.text("<html>hello</html>", content_type="text/html"),
        Reply.json({"detail": "Not Found"}, status=404),
        Reply.json({"models": []}),
        Reply.json(["m"]),
        Reply.json({"data": {"id": "m"}}),
        Reply.text("oops", status=500),
    ],
)
async def test_error_says_it_is_no_openai_server_when_models_are_not_listed(answer: Reply) -> None:
    error = await refused({MODELS: answer})
    assert "does not answer like an OpenAI-compatible server" in error.problem


async def test_error_says_to_load_a_model_when_none_is_served() -> None:
    assert "serves no model" in (await refused({MODELS: models()})).problem


async def test_error_says_to_wait_when_the_server_is_loading() -> None:
    loading = Reply.json({"error": {"message": "Loading model", "code": 503}}, status=503)
    error = await refused({MODELS: loading})
    assert "not ready (503): Loading model" in error.problem
    assert "wait" in error.advice


async def test_error_names_the_new_address_when_the_server_redirects() -> None:
    error = await refused({MODELS: Reply.text("", status=308, location="https://example.org/v1/models")})
    assert "https://example.org/v1/models" in error.problem


async def test_error_says_what_to_check_when_nobody_listens() -> None:
    async with ScriptedHttp({}) as server:
        url = server.url
    with pytest.raises(TargetError, match="no answer from") as found:
        await connect(url)
    assert "host and port" in found.value.advice


async def test_error_says_what_to_check_when_http_is_spoken_to_as_https() -> None:
    async with ScriptedHttp({}) as server:
        with pytest.raises(TargetError, match="no answer from") as found:
            await connect(server.url.replace("http:", "https:"))
    assert "http or https" in found.value.advice


async def test_error_comes_before_any_request_when_the_tokenizer_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.json"):
        await connect("http://127.0.0.1:1", tokenizer=tmp_path)


# -- what is handed on -------------------------------------------------------------------------------------------------


async def test_key_is_sent_with_every_request() -> None:
    async with ScriptedHttp({MODELS: models("m")}) as server:
        engine = await connect(server.url, api_key="sesame")
        await engine.alive()
        await engine.aclose()
        assert {request.headers["authorization"] for request in server.received} == {"Bearer sesame"}


async def test_environment_s_proxy_is_not_used_when_the_server_is_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert (await connected({MODELS: models("m")})).model == "m"


async def test_deployment_joins_what_the_starter_knows() -> None:
    def known() -> Deployment:
        return Deployment(
            engine=EngineKind.LLAMACPP,
            model=given("m", "option"),
            kv_dtype=given("q8_0", "option k_type"),
            configured_limit_tokens=given(1024, "option context_tokens"),
            other={"threads": given("2", "option threads")},
        )

    routes: dict[str, Answer] = {MODELS: models("m", owned_by="llamacpp"), "GET /props": PROPS}
    async with ScriptedHttp(routes) as server:
        engine = await connect(server.url, known=known)
        deployment = await engine.introspect()
        await engine.aclose()
    assert value_or_none(deployment.kv_dtype) == "q8_0"
    # the server's word is stronger than the option, and the option stays in sight
    assert value_or_none(deployment.configured_limit_tokens) == 512
    assert value_or_none(deployment.other["configured_limit_tokens (given)"]) == "1024"
    assert value_or_none(deployment.other["threads"]) == "2"


class Restarted:
    """An owned process that comes back on another port."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.calls: list[str] = []

    async def restart(self) -> None:
        self.calls.append("restart")

    async def stop(self) -> None:
        self.calls.append("stop")


async def test_engine_follows_its_process_when_a_restart_moves_it() -> None:
    async with ScriptedHttp({MODELS: models("m")}) as old, ScriptedHttp({MODELS: models("m")}) as new:
        owner = Restarted(new.url)
        engine = await connect(old.url, owner=owner)
        assert engine.capabilities.restarts
        await engine.restart()
        assert engine.url == new.url
        await engine.introspect()
        assert [request.target for request in new.received] == ["/v1/models"]
        await engine.aclose()
        assert owner.calls == ["restart", "stop"]


async def test_restart_is_a_usage_error_when_the_process_is_not_ours() -> None:
    engine = await connected({MODELS: models("m")})
    assert not engine.capabilities.restarts
    with pytest.raises(UsageError, match="not ours"):
        await engine.restart()
