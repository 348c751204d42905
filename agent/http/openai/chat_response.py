"""Chat completion responses, whole or as chunks of a stream. Pure.

The model's thoughts stand beside the content, as `reasoning_content`: so do vLLM, SGLang and
DeepSeek's API.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from llm_engine.chat.call_reader import (
    ArgumentsDelta,
    CallReader,
    CallStarted,
    ReplyEvent,
    TextDelta,
)
from llm_engine.core.output import FinishReason, TokenChunk, Usage

_FINISH: Final = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class Completion:
    """Writes the answer to one request."""

    def __init__(
        self, completion_id: str, created_s: int, model: str, reader: CallReader | None = None
    ) -> None:
        """`created_s` is Unix time; `reader` finds the calls of a reply that may have some."""
        self._common = {"id": completion_id, "created": created_s, "model": model}
        self._call_id = completion_id.rpartition("-")[2]
        self._reader = reader
        self._num_calls = 0
        self._has_begun = False

    def pieces(self, chunk: TokenChunk) -> Iterator[dict[str, Any]]:
        """Some more of a streamed answer, perhaps nothing yet; the first piece says whose it is.

        The last chunk also brings the reason why it ends.
        """
        if chunk.thought:
            yield self._delta({"reasoning_content": chunk.thought})
        for event in self._events(chunk):
            yield self._delta(self._written(event))
        if chunk.finish_reason is not None:
            if not self._has_begun:
                yield self._delta({"content": ""})
            yield self._delta({}, self._finish(chunk.finish_reason))

    def usage_piece(self, usage: Usage) -> dict[str, Any]:
        """Comes after the last one, for clients that ask for it."""
        return {**self._piece([]), "usage": _usage(usage)}

    def whole(self, chunks: Sequence[TokenChunk]) -> dict[str, Any]:
        """An answer that is not streamed, of a reply's chunks up to the last."""
        last = chunks[-1]
        assert last.finish_reason is not None
        assert last.usage is not None
        text = ""
        calls: list[dict[str, Any]] = []
        for event in (event for chunk in chunks for event in self._events(chunk)):
            if isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, CallStarted):
                calls.append(self._call(event, len(calls)))
            else:
                calls[-1]["function"]["arguments"] += event.text
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        thought = "".join(chunk.thought for chunk in chunks)
        if thought:
            message["reasoning_content"] = thought
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": self._finish(last.finish_reason),
        }
        return {
            **self._common,
            "object": "chat.completion",
            "choices": [choice],
            "usage": _usage(last.usage),
        }

    def _events(self, chunk: TokenChunk) -> list[ReplyEvent]:
        if self._reader is None:
            return [TextDelta(chunk.text)] if chunk.text else []
        events = self._reader.push(chunk.text)
        return events if chunk.finish_reason is None else [*events, *self._reader.flush()]

    def _written(self, event: ReplyEvent) -> dict[str, Any]:
        if isinstance(event, TextDelta):
            return {"content": event.text}
        if isinstance(event, CallStarted):
            self._num_calls += 1
            index = self._num_calls - 1
            call = {"index": index, **self._call(event, index)}
            return (
                {"tool_calls": [call]}
                if self._has_begun
                else {"content": None, "tool_calls": [call]}
            )
        assert isinstance(event, ArgumentsDelta)
        call = {"index": self._num_calls - 1, "function": {"arguments": event.text}}
        return {"tool_calls": [call]}

    def _call(self, begun: CallStarted, index: int) -> dict[str, Any]:
        function = {"name": begun.name, "arguments": ""}
        return {"id": f"call_{self._call_id}_{index}", "type": "function", "function": function}

    def _finish(self, reason: FinishReason) -> str:
        reader = self._reader
        if reason is FinishReason.STOP and reader is not None and reader.num_calls:
            return "tool_calls" if reader.is_whole else "stop"
        return _FINISH[reason]

    def _delta(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        if not self._has_begun:
            self._has_begun = True
            delta = {"role": "assistant", **delta}
        return self._piece([{"index": 0, "delta": delta, "finish_reason": finish_reason}])

    def _piece(self, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {**self._common, "object": "chat.completion.chunk", "choices": list(choices)}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
