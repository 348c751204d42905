"""Talks to a model through `/v1/chat/completions`: ours, or any other server of that interface."""

import json
from collections.abc import Sequence
from typing import Any, Final, Protocol

import httpx

from agent.errors import BenchError

from .dialogue import Dialogue
from .domains import Arguments, Domain, DomainError, State
from .judge import call_problems, holds, problems
from .records import DialogueRecord, TurnResult

TIMEOUT_S: Final = 120.0
"""Wait for an answer; a large model on two cores takes some seconds."""
_UNREACHABLE: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
)
"""Errors that every request would have."""
MAX_ROUNDS: Final = 4
"""Answers to one line of the caller: with tools, each but the last calls some."""


class BadAnswerError(Exception):
    """The server answers a request with an error, too late, or not as a chat endpoint does."""


class DialogueContestant(Protocol):
    """What holds the dialogues."""

    def hold(self, dialogue: Dialogue) -> DialogueRecord: ...


class TextContestant:
    """A model behind an OpenAI-compatible URL."""

    def __init__(
        self,
        url: str,
        model: str,
        instructions: str,
        examples: Sequence[tuple[str, str]] = (),
        *,
        with_tools: bool = True,
        key: str = "",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """`url` ends before `/chat/completions`. `examples`: lines of caller and agent, sent before
        every dialogue, or `with_tools` false: before those without tools."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.Client(headers=headers, timeout=TIMEOUT_S, transport=transport)
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._model = model
        self._instructions = instructions
        self._examples_with_tools = with_tools
        self._examples = [
            {"role": role, "content": text}
            for pair in examples
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]

    def close(self) -> None:
        self._http.close()

    def hold(self, dialogue: Dialogue) -> DialogueRecord:
        """Hold one dialogue and judge it. A bad answer of the server is a problem of its turn, and
        ends the dialogue. Raises BenchError where the server can't be reached."""
        domain = dialogue.domain
        system = self._instructions if domain is None else f"{self._instructions} {domain.about}"
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}]
        if domain is None or self._examples_with_tools:
            messages += self._examples
        state = domain.fresh_state() if domain is not None else {}
        record = DialogueRecord(dialogue.id, dialogue.category)
        for turn in dialogue.turns:
            messages.append({"role": "user", "content": turn.caller})
            try:
                reply, calls = self._answer(messages, domain, state)
            except BadAnswerError as error:
                record.turns.append(TurnResult(turn.caller, "", [], [str(error)], False))
                return record
            found = problems(turn, reply, calls)
            right = not call_problems(turn, calls)
            record.turns.append(TurnResult(turn.caller, reply, calls, found, right))
        if dialogue.state is not None and not holds(dialogue.state, state):
            record.state_problem = f"state is {json.dumps(state)}"
        return record

    def _answer(
        self, messages: list[dict[str, Any]], domain: Domain | None, state: State
    ) -> tuple[str, list[tuple[str, Arguments]]]:
        """Get the reply to the last message, running its calls; appends to the messages. As the
        agent does, a call made before in this turn gets its first result, and ends the calls."""
        calls: list[tuple[str, Arguments]] = []
        results: dict[tuple[str, str], str] = {}
        spoken: list[str] = []
        is_repeating = False
        for _ in range(MAX_ROUNDS):
            message = self._post(messages, domain, may_call=not is_repeating)
            messages.append(message)
            spoken.append(message.get("content") or "")
            asked = message.get("tool_calls") or ()
            if not asked or domain is None:
                break
            for call in asked:
                name, given = call["function"]["name"], call["function"]["arguments"]
                is_repeating = (name, given) in results
                if not is_repeating:
                    arguments, results[name, given] = run_call(domain, state, name, given)
                    calls.append((name, arguments))
                result = results[name, given]
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return " ".join(text.strip() for text in spoken if text.strip()), calls

    def _post(
        self, messages: list[dict[str, Any]], domain: Domain | None, *, may_call: bool
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model, "messages": messages, "temperature": 0}
        body["max_tokens"] = 200
        if domain is not None:
            body["tools"] = [tool.definition() for tool in domain.tools]
            body["tool_choice"] = "auto" if may_call else "none"
        try:
            answer = self._http.post(self._url, json=body)
            answer.raise_for_status()
            return _kept(answer.json()["choices"][0]["message"])
        except _UNREACHABLE as error:
            raise BenchError(f"{self._url} can't be reached: {error!r}") from None
        except httpx.HTTPStatusError as error:
            text = error.response.text[:300]
            problem = f"{self._url} answers {error.response.status_code}: {text}"
            raise BadAnswerError(problem) from None
        except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
            problem = f"{self._url} does not answer as a chat endpoint: {error!r}"
            raise BadAnswerError(problem) from None


def _kept(message: dict[str, Any]) -> dict[str, Any]:
    """What a message of the server brings to the history. Raises LookupError, TypeError or
    AttributeError where it is no message, or a call lacks a part."""
    for call in message.get("tool_calls") or ():
        function = call["function"]
        texts = (call["id"], function["name"], function["arguments"])
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a call's id, name and arguments must be strings")
    if not isinstance(message.get("content"), str | None):
        raise TypeError("content must be a string")
    kept = ("role", "content", "tool_calls")
    return {name: message[name] for name in kept if message.get(name) is not None}


def run_call(domain: Domain, state: State, name: str, given: str) -> tuple[Arguments, str]:
    """Run a call with arguments in JSON. Returns them, and the result in JSON."""
    try:
        arguments = json.loads(given)
        if not isinstance(arguments, dict):
            raise DomainError("arguments must be an object")
    except ValueError:
        return {}, json.dumps({"error": "the arguments are no JSON"})
    except DomainError as error:
        return {}, json.dumps({"error": str(error)})
    try:
        return arguments, json.dumps(domain.call(state, name, arguments))
    except DomainError as error:
        return arguments, json.dumps({"error": str(error)})
    except (KeyError, TypeError, ValueError) as error:
        return arguments, json.dumps({"error": f"wrong arguments: {error!r}"})
