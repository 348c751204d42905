"""JSON bodies of HTTP requests: chat, speech and client secrets.

The first byte chooses the endpoint and the content type. A body is read, or refused in words; what
a chat request asks for is prompted and its grammar compiled, as for a model.
"""

import json
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from tokenizers import Tokenizer as Bpe

from agent.config.layers import load_config
from agent.errors import ClientError
from agent.http.auth.client_secrets import ClientSecrets
from agent.http.auth.principal import SCOPE_KEY, Principal, client_of
from agent.http.endpoints.client_secrets import SecretEndpoint
from agent.http.json_body import JsonBodies
from agent.http.openai.chat import _parsed
from agent.http.openai.speech_request import parse_speech
from agent.http.refusal import error_body
from agent.session.api.settings import SessionSettings
from agent.stages.registry import tool_limits_of
from latency_budget.account.clock import SystemClock
from llm_engine.chat.tool_calls import HERMES, LLAMA
from llm_engine.checkpoints.tokenizer import Tokenizer, bytes_of_tokens
from llm_engine.config import SamplingParams
from llm_engine.errors import RequestError
from llm_engine.structured_output.compiler import GrammarCompiler
from tests.fuzz.connections import FuzzLoop
from tests.fuzz.target import MAX_MESSAGE_CHARS, JsonGrammar, Target
from tests.support.fakes.small_model_files import SPECIAL, tokens, whole_tokenizer_json

_PARAMETERS: Final = {
    "type": "object", "additionalProperties": False, "required": ["city"],
    "properties": {"city": {"type": "string", "maxLength": 20, "pattern": "^[A-Z][a-z]*$"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7}, "unit": {"enum": ["C", "F"]},
        "when": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/when"}]}},
    "$defs": {"when": {"type": "array", "items": {"type": "number"}, "minItems": 1}},
}  # fmt: skip
_TOOL: Final = {"type": "function", "function": {
    "name": "weather", "description": "d", "parameters": _PARAMETERS, "strict": True}}  # fmt: skip
_CALL: Final = {"id": "c1", "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}  # fmt: skip
CHATS: Final[tuple[dict[str, Any], ...]] = (
    {"model": "m", "messages": [{"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]}], "stream": True,
        "stream_options": {"include_usage": True}, "temperature": 0.5, "top_p": 0.9, "top_k": 5,
        "min_p": 0.1, "repetition_penalty": 1.1, "seed": 7, "max_completion_tokens": 9, "n": 1,
        "stop": ["x"], "min_tokens": 1, "ignore_eos": False, "user": "u"},
    {"messages": [{"role": "user", "content": "Weather?"}], "tools": [_TOOL],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False},
    {"messages": [{"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "<think>x</think>", "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "Rain"}], "tools": [_TOOL],
        "tool_choice": "required"},
    {"messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True,
            "schema": _PARAMETERS}}, "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [{"role": "user", "content": "y"}], "response_format": {"type": "json_object"}},
)  # fmt: skip
SPEECHES: Final[tuple[dict[str, Any], ...]] = (
    {"model": "m", "input": "Hello there.", "voice": "alloy", "response_format": "mp3",
        "speed": 1.5, "instructions": "x", "stream_format": "audio"},
    {"input": "Hello there.", "voice": {"id": "alloy"}, "response_format": "pcm", "speed": 4,
        "stream_format": "sse"},
)  # fmt: skip
SECRETS: Final[tuple[dict[str, Any], ...]] = (
    {"expires_after": {"anchor": "created_at", "seconds": 600}, "session": {"type": "realtime",
        "model": "m", "instructions": "x", "tools": [{"type": "function", "name": "f",
            "parameters": {"type": "object"}}], "audio": {"output": {"voice": "v"},
            "input": {"turn_detection": {"type": "semantic_vad", "eagerness": "low"}}}}},
    {"session": {"type": "transcription"}},
    {},
)  # fmt: skip
GRAMMAR: Final = JsonGrammar([*CHATS, *SPEECHES, *SECRETS, _PARAMETERS])

CONFIG: Final = load_config()
LIMITS: Final = tool_limits_of(CONFIG.llm_engine)
DEFAULTS: Final = SamplingParams()
LOOP: Final = FuzzLoop()


def _tokenizer() -> Tokenizer:
    description = whole_tokenizer_json()
    texts = tokens([each for each in description["model"]["vocab"] if len(each) == 1])
    plain = {**description, "added_tokens": []}
    controls = {index: True for index, _ in enumerate(SPECIAL)}
    return Tokenizer(
        plain=Bpe.from_str(json.dumps(plain)),
        full=Bpe.from_str(json.dumps(description)),
        token_bytes=bytes_of_tokens(texts, byte_level=True, added=controls),
        control_ids=frozenset(controls),
        end_ids=frozenset((2,)),
        bos="",
        eos=SPECIAL[2],
        chat_template=None,
    )


COMPILER: Final = GrammarCompiler(_tokenizer())


def request_with(body: bytes, kind: bytes, size: int) -> Request:
    """A request whose body comes in pieces of this size."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    messages = iter(
        {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
        for number, piece in enumerate(pieces, 1)
    )

    async def receive() -> Any:
        return next(messages, {"type": "http.disconnect"})

    scope = {
        "type": "http", "method": "POST", "path": "/", "query_string": b"",
        "headers": [(b"content-type", kind)], SCOPE_KEY: Principal("ana", "key", key_id="key:1"),
    }  # fmt: skip
    return Request(scope, receive)


async def _chat(request: Request) -> None:
    async with JsonBodies(client_of).read(request) as body:
        asked = _parsed(body, DEFAULTS, LIMITS)
    for dialect in (HERMES, LLAMA):
        _, _, sampling = asked.prompt(dialect)
        reader = asked.reader(dialect)
        assert (reader is None) == (asked.tools is None), asked
    if sampling.grammar is not None:
        COMPILER.compile(sampling.grammar)


async def _speech(request: Request) -> None:
    async with JsonBodies(client_of).read(request) as body:
        asked = parse_speech(body)
    assert asked.text.strip(), asked
    assert 0.25 <= asked.speed <= 4, asked


async def _agreed(settings: SessionSettings) -> None:
    """Every session could have a reply."""


async def _published(_text: str, _holder: Principal, _life_s: int) -> None:
    """No other server need know the secret."""


async def _secret(request: Request) -> None:
    endpoint = SecretEndpoint(
        CONFIG, ClientSecrets(), SystemClock(), _agreed, _published, JsonBodies(client_of)
    )
    response = await endpoint.serve(request)
    assert response.status_code < 500, response.status_code
    answer = json.loads(bytes(response.body))
    if response.status_code == 200:
        assert answer["value"].startswith("ek_"), answer
    else:
        assert 0 < len(answer["error"]["message"]) <= MAX_MESSAGE_CHARS, answer


ENDPOINTS: Final[tuple[Callable[[Request], Awaitable[None]], ...]] = (_chat, _speech, _secret)
SAMPLES: Final = (CHATS, SPEECHES, SECRETS)


def examine(data: bytes) -> None:
    """One request."""
    first = data[0] if data else 0
    kind = b"text/plain" if first > 250 else b"application/json; charset=utf-8"
    request = request_with(data[1:], kind, 1 << 20 if first < 128 else 7)
    LOOP.run(_serve(request, ENDPOINTS[first % len(ENDPOINTS)]))


async def _serve(request: Request, endpoint: Callable[[Request], Awaitable[None]]) -> None:
    try:
        await endpoint(request)
    except (RequestError, ClientError) as error:
        assert str(error), error
        assert len(str(error)) <= MAX_MESSAGE_CHARS, error
        json.dumps(error_body(error, is_clients=True)).encode()


def change(data: bytes, chance: random.Random) -> bytes | None:
    """As JSON, often twice; or as bytes."""
    if chance.random() < 0.25:
        return None
    text: bytes | None = data[1:]
    for _ in range(chance.choice((1, 1, 2, 3))):
        text = None if text is None else GRAMMAR.change_text(text, chance)
    return None if text is None else data[:1] + text


def seeds() -> list[bytes]:
    return [
        bytes([number + flag]) + json.dumps(sample).encode()
        for number, samples in enumerate(SAMPLES)
        for sample in samples
        for flag in (0, 129)
    ]


TARGET: Final = Target(
    examine, seeds, change, words=[f'"{name}"'.encode() for name in GRAMMAR.names], max_bytes=3000
)
