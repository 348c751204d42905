"""Streams in the shapes of other servers, written after their documentation and sources.

vLLM 0.11 (`vllm/entrypoints/openai/serving_chat.py`): the role comes in a chunk of its own, thoughts
as `reasoning_content`, a call's id and name in its first piece, the usage behind all choices.
SGLang 0.5 (`sglang/srt/entrypoints/openai/serving_chat.py`): every field is there, null where it is
empty, and `matched_stop` beside the reason. llama.cpp's server: `content` is null in the first
chunk, `timings` stand in the last one. Ollama: whole calls in one piece, and a usage that is always
there. Azure: a first chunk with filter results and no choice.
"""

from typing import Final

import pytest

from agent.session.api.conversation import ModelCall
from agent.session.api.server_events import Usage
from agent.session.ports.stage_ports import Tools
from tests.agent.stages.remote.test_remote_chat import WEATHER, reply, talking, text_of
from tests.support.service.model_servers import stream

CALL: Final = ModelCall("weather", '{"city": "Bonn"}')

VLLM: Final = (
    '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null}',
    '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"reasoning_content":"Hm."},"logprobs":null,"finish_reason":null,"token_ids":null}]}',
    '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"Let me"},"logprobs":null,"finish_reason":null,"token_ids":null}]}',
    '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" see."},"logprobs":null,"finish_reason":null,"token_ids":null}]}',
    '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"id":"chatcmpl-tool-1","type":"function","index":0,"function":{"name":"weather"}}]},"logprobs":null,"finish_reason":null,"token_ids":null}]}',
    '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\\"city\\": \\"B"}}]},"logprobs":null,"finish_reason":null,"token_ids":null}]}',
    '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"onn\\"}"}}]},"logprobs":null,"finish_reason":null,"token_ids":null}]}',
    '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"tool_calls","stop_reason":null,"token_ids":null}]}',
    '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":30,"total_tokens":44,"completion_tokens":14,"prompt_tokens_details":{"cached_tokens":16}}}',
)  # fmt: skip

SGLANG: Final = (
    '{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}',
    '{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":"Let me see.","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}',
    '{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":null,"reasoning_content":null,"tool_calls":[{"id":"call_1","index":0,"type":"function","function":{"name":"weather","arguments":""}}]},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}',
    '{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":null,"reasoning_content":null,"tool_calls":[{"id":null,"index":0,"type":"function","function":{"name":null,"arguments":"{\\"city\\": \\"Bonn\\"}"}}]},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}',
    '{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":null,"content":null,"reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":"tool_calls","matched_stop":null}],"usage":null}',
    '{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":30,"total_tokens":44,"completion_tokens":14,"prompt_tokens_details":{"cached_tokens":16}}}',
)  # fmt: skip

LLAMA_CPP: Final = (
    '{"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],"created":1,"id":"1","model":"m","system_fingerprint":"b1","object":"chat.completion.chunk"}',
    '{"choices":[{"finish_reason":null,"index":0,"delta":{"content":"Let me see."}}],"created":1,"id":"1","model":"m","system_fingerprint":"b1","object":"chat.completion.chunk"}',
    '{"choices":[{"finish_reason":null,"index":0,"delta":{"tool_calls":[{"index":0,"id":"k","type":"function","function":{"name":"weather","arguments":"{"}}]}}],"created":1,"id":"1","model":"m","object":"chat.completion.chunk"}',
    '{"choices":[{"finish_reason":null,"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\\"city\\": \\"Bonn\\"}"}}]}}],"created":1,"id":"1","model":"m","object":"chat.completion.chunk"}',
    '{"choices":[{"finish_reason":"tool_calls","index":0,"delta":{}}],"created":1,"id":"1","model":"m","object":"chat.completion.chunk"}',
    '{"choices":[],"created":1,"id":"1","model":"m","object":"chat.completion.chunk","usage":{"completion_tokens":14,"prompt_tokens":30,"total_tokens":44,"prompt_tokens_details":{"cached_tokens":16}},"timings":{"cache_n":16,"prompt_n":14,"predicted_ms":1.5}}',
)  # fmt: skip

OLLAMA: Final = (
    '{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","system_fingerprint":"fp_ollama","choices":[{"index":0,"delta":{"role":"assistant","content":"Let me see."},"finish_reason":null}]}',
    '{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"","tool_calls":[{"id":"call_1","index":0,"type":"function","function":{"name":"weather","arguments":"{\\"city\\": \\"Bonn\\"}"}}]},"finish_reason":null}]}',
    '{"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":30,"completion_tokens":14,"total_tokens":44,"prompt_tokens_details":{"cached_tokens":16}}}',
)  # fmt: skip

AZURE: Final = (
    '{"choices":[],"created":0,"id":"","model":"","object":"","prompt_filter_results":[{"prompt_index":0,"content_filter_results":{}}]}',
    *OLLAMA,
)  # fmt: skip

SHAPES: Final = {
    "vLLM": VLLM,
    "SGLang": SGLANG,
    "llama.cpp": LLAMA_CPP,
    "Ollama": OLLAMA,
    "Azure": AZURE,
}


@pytest.mark.parametrize("server", SHAPES)
async def test_words_calls_and_usage_of(server: str) -> None:
    tools = Tools((WEATHER,))
    async with talking(stream(*SHAPES[server])) as (chat, _, _):
        await chat.set_tools(tools.definitions)
        tokens = await reply(chat, tools)
        assert text_of(tokens) == "Let me see."
        assert [call for token in tokens for call in token.calls] == [CALL]
        assert tokens[-1].finish_reason == "tool_calls"
        assert tokens[-1].usage == Usage(30, 16, 14)
