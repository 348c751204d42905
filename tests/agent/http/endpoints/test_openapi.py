"""`/openapi.json`: it is OpenAPI, it describes what is served, and what it promises is kept."""

from io import BytesIO
from typing import Any, Final

import httpx
import numpy as np
import openai
import pytest
import requests
import schemathesis
import soundfile
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from starlette.routing import Route

from agent.config.schema import Config
from agent.http.endpoints.openapi import description
from agent.http.openai.speech_request import MAX_INPUT_CHARS
from agent.server.app import create_app
from agent.stages.model_store.catalogue import ModelStore
from agent.stages.registry import Stages
from latency_budget.account.clock import SystemClock
from tests.support.service.live import LiveServer

pytest_plugins = ["tests.support.service.live_fixtures"]

MAX_TEXT_CHARS: Final = 40

CONNECTIONS: Final = requests.Session()
"""For all cases: what one address opens faster than `access.connections_per_s` is closed."""

UNDESCRIBED: Final = "/v1/{path:any}"
"""What refuses paths that nobody knows."""

CHECKS: Final = (
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
)


def test_description_is_valid_openapi() -> None:
    OpenAPIV31SpecValidator(description()).validate()


def test_each_route_is_described_and_each_description_served() -> None:
    clock = SystemClock()
    app = create_app(Config(), Stages(Config(), ModelStore(), clock), clock)
    served = {
        (route.path.replace(":any}", "}"), method.lower())
        for route in app.asgi.routes
        if isinstance(route, Route) and route.path != UNDESCRIBED
        for method in (route.methods or set()) - {"HEAD"}
    }
    described = {
        (path, method)
        for path, operations in description()["paths"].items()
        for method in operations
    }
    assert served == described


def test_operation_ids_are_unique() -> None:
    names = [
        operation["operationId"]
        for operations in description()["paths"].values()
        for operation in operations.values()
    ]
    assert len(names) == len(set(names))


@pytest.mark.models
async def test_models_and_one_of_them(live: LiveServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{live.http}/v1", api_key="none", max_retries=0) as api:
        listed = [model async for model in api.models.list()]
        names = [model.id for model in listed]
        assert names[:5] == ["default", "pirate", "reader", "helper", "desk"]
        assert names[5:] == ["smollm2-135m-instruct", "whisper-tiny.en", "hibari"]
        for model in listed:
            assert await api.models.retrieve(model.id) == model
        with pytest.raises(openai.NotFoundError) as caught:
            await api.models.retrieve("gpt-9")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.models
async def test_wrong_methods_and_paths_get_a_helpful_error(live: LiveServer) -> None:
    async with httpx.AsyncClient(timeout=60, base_url=live.http, trust_env=False) as http:
        wrong = await http.get("/v1/audio/speech")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert wrong.json()["error"]["code"] == "method_not_allowed"
        assert (await http.delete("/v1/models/default")).headers["allow"] == "GET, HEAD"
        missing = await http.get("/v1/embeddings")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
        assert (await http.head("/v1/models")).status_code == 200
        document = await http.get("/openapi.json")
        assert document.json() == description()
        page = await http.get("/")
        assert page.headers["content-type"].startswith("text/html")


def sound(seconds: float) -> bytes:
    file = BytesIO()
    soundfile.write(file, np.zeros(int(8000 * seconds)), 8000, format="WAV", subtype="PCM_16")
    return file.getvalue()


@schemathesis.serializer("application/sdp")
def _as_text(_: Any, value: Any) -> Any:
    return value if isinstance(value, bytes) else str(value).encode()


schemathesis.openapi.format(
    "binary", st.binary(max_size=200) | st.sampled_from([sound(0.1), sound(1)])
)
schema: Any = schemathesis.openapi.from_dict(description())


@pytest.mark.models
@schema.exclude(path="/v1/latency/events").parametrize()  # type: ignore[untyped-decorator]
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_responses_match_the_description(live_server: LiveServer, case: Any) -> None:
    """Valid and invalid requests of all kinds: no server error, no answer but as described. An
    endless stream of events is left out."""
    if case.operation.path == "/v1/chat/completions" and isinstance(case.body, dict):
        for name in ("max_tokens", "max_completion_tokens", "min_tokens"):  # it need not talk on
            case.body[name] = 1
    if case.operation.path == "/v1/audio/speech" and isinstance(case.body, dict):
        text = case.body.get("input")
        if isinstance(text, str) and MAX_TEXT_CHARS < len(text) <= MAX_INPUT_CHARS:
            case.body["input"] = text[:MAX_TEXT_CHARS]  # a digit is a word: that is half an hour
    case.call_and_validate(
        base_url=live_server.http, session=CONNECTIONS, checks=CHECKS, timeout=60
    )
