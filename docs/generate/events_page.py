"""Reference of the voice socket's events.

Names of client events come from the parser. Server events come from the protocol itself, which
sends one of every kind, so that fields and examples are real. Meanings, and the extension events
that a session sends, are written here; `tests/test_docs.py` compares their names with the code.
"""

import json
from typing import Any, Final

from agent.realtime.protocol.parse import _READERS
from tests.support.wire.every_event import frames_of_every_kind

_HEAD: Final = """\
# Events of the voice socket

`/v1/realtime` speaks the OpenAI Realtime protocol (GA dialect). OpenAI's own reference of it:
[Realtime client events](https://platform.openai.com/docs/api-reference/realtime-client-events) and
[server events](https://platform.openai.com/docs/api-reference/realtime-server-events). This page is
generated from the code: what is read and what is sent here. The beta dialect is refused with
`beta_api_shape_disabled`.

Query of the socket's address: `model` (an agent's name; any other name is served by the default),
`intent=transcription`, `resume` (a token of `halfsec.session`).
"""

CLIENT: Final = {
    "session.update": "Change the session ([its fields](fields.md)). Only those present change; "
    "`turn_detection: null` turns voice detection off. Answer: `session.updated` with the whole "
    "session, or `error`. It takes seconds where a language's models have to be loaded: audio, "
    "`response.cancel` and `conversation.item.truncate` are taken meanwhile, all else waits in "
    "order.",
    "input_audio_buffer.append": "Audio of the caller, base64, in the session's input format "
    "(24 kHz 16-bit PCM, mu-law or A-law). No answer.",
    "input_audio_buffer.commit": "End the caller's message (push to talk). Starts no response by "
    "itself.",
    "input_audio_buffer.clear": "Forget audio that is not committed.",
    "output_audio_buffer.clear": "WebRTC only: stop the agent's audio and its response. On a "
    "WebSocket it is refused with the events to send instead.",
    "conversation.item.create": "Add a message, a function call or a function's output behind "
    "`previous_item_id` (`root`: in front).",
    "conversation.item.retrieve": "Ask for an item, with its transcript.",
    "conversation.item.truncate": "Say how much of a reply was played (`audio_end_ms`); the rest "
    "leaves the conversation. More than was sent is taken as all of it.",
    "conversation.item.delete": "Delete an item.",
    "response.create": "Ask for a response; `response` ([its fields](fields.md)) may change "
    "instructions, tools, voice, modality, `input`, `conversation` (`none`: out of band), "
    "`metadata`.",
    "response.cancel": "Stop the response; with `response_id` only that one (else "
    "`response_cancel_not_active`). Without it also one that waits behind a `session.update`: it "
    "ends with the error `response_cancelled`.",
    "halfsec.playback": "Extension: `played_ms` of the reply `item_id` have left the loudspeaker.",
}
"""Client events and their meaning."""

SERVER: Final = {
    "session.created": "The first event of a call: the whole session, with its defaults.",
    "session.updated": "The whole session after a change, after a resumption, when the caller's "
    "language is found, or after a handoff: `model` is then the agent that took over.",
    "error": "What is wrong with an event of the client (`event_id`, `param`), or with the call. "
    "The session goes on.",
    "rate_limits.updated": "Always an empty list; clients expect the event.",
    "input_audio_buffer.speech_started": "The caller began to speak: stop what is playing. "
    "`audio_start_ms` counts all audio of the session.",
    "input_audio_buffer.speech_stopped": "The turn is over, by the server's turn detection. Where "
    "`input_audio_buffer.committed` does not follow, there were no words in it.",
    "input_audio_buffer.committed": "The audio has become the item `item_id`.",
    "input_audio_buffer.cleared": "Audio that was not committed is forgotten.",
    "input_audio_buffer.timeout_triggered": "The caller was silent for `idle_timeout_ms`.",
    "conversation.item.added": "An item is in the conversation, behind `previous_item_id`.",
    "conversation.item.done": "The item is complete.",
    "conversation.item.retrieved": "The item that was asked for.",
    "conversation.item.deleted": "The item is gone.",
    "conversation.item.truncated": "The item ends where it was heard.",
    "conversation.item.input_audio_transcription.delta": "Words of the caller that do not change "
    "any more.",
    "conversation.item.input_audio_transcription.completed": "All words of the caller's turn.",
    "conversation.item.input_audio_transcription.failed": "There is no transcript, and why.",
    "response.created": "A response begins.",
    "response.done": "It is over: `completed`, `cancelled`, `incomplete` or `failed`, with usage.",
    "response.output_item.added": "A message or a function call of the response begins.",
    "response.output_item.done": "It is complete.",
    "response.content_part.added": "The text or audio of a message begins.",
    "response.content_part.done": "It is complete.",
    "response.output_audio.delta": "Audio, base64, in the response's format: at most 200 ms.",
    "response.output_audio.done": "No more audio of this message.",
    "response.output_audio_transcript.delta": "Words, just before the audio that speaks them.",
    "response.output_audio_transcript.done": "All words that were spoken.",
    "response.output_text.delta": "Words of a response in text.",
    "response.output_text.done": "All of its words.",
    "response.function_call_arguments.delta": "Arguments of a function call.",
    "response.function_call_arguments.done": "The call is complete: run the function.",
}
"""Server events and their meaning."""

WEBRTC: Final = {
    "output_audio_buffer.started": "The first audio of the response `response_id` leaves.",
    "output_audio_buffer.stopped": "The last audio of the response has left.",
    "output_audio_buffer.cleared": "The response was interrupted, by the caller or by "
    "`output_audio_buffer.clear`: audio that had not left was dropped.",
}
"""Server events of calls by WebRTC, and their meaning."""

EXTENSIONS: Final = {
    "halfsec.session": (
        "`session`, `resume_token`, `resume_s`",
        "Comes after `session.created` and after each resumption. The newest token counts.",
    ),
    "halfsec.resumed": (
        "`session`, `items`, `previous_item_id`, `num_items`, `received`, `will_answer`",
        "The call goes on at this connection. `items`: the newest of the conversation (64, or "
        "256 kB). `received`: frames of the client that were processed. `will_answer`: a response "
        "follows by itself.",
    ),
    "halfsec.partial": (
        "`item_id`, `text`, `stable_chars`",
        "Words of the caller so far; the first `stable_chars` characters do not change any more. "
        "Without turn detection they come before the commit, with the item's later id.",
    ),
    "halfsec.turn": (
        "`turn`, `response_id`",
        "A turn is over: its words, latencies, stages and actions, as in `/v1/latency/turns`. It "
        "comes when it is known whether the reply cut in: up to 2.5 s after its first sound, or "
        "when the words of a caller who spoke over it are known.",
    ),
    "halfsec.mark": (
        "`turn`, `name`, `at_ms`, `now_ms`, `guess`",
        "A mark of a turn as soon as it is known, at most 64 a turn. `turn` is null until the turn "
        "has a number; the first mark with one gives it to those before. The name `void` takes "
        "back the marks without a number: the caller goes on. Times count from the session's "
        "start; `now_ms` is the time of sending. `guess`: work for a response that is prepared in "
        "case the caller has finished.",
    ),
    "halfsec.duck": (
        "`item_id`",
        "Play that reply quietly until `halfsec.unduck`, its end, or `speech_started`.",
    ),
    "halfsec.unduck": ("`item_id`", "Play that reply at full volume again."),
    "halfsec.waiting": (
        "`stage`, `waited_ms`",
        "The caller waits for `stage` (null: not known), and nothing was sent for 1.5 s because of "
        "that: the call is alive. It comes again every 1.5 s.",
    ),
    "halfsec.context": (
        "`summary`, `messages`, `tokens_before`, `tokens`",
        "The model has this summary in place of so many of the conversation's oldest messages, and "
        "its context fewer tokens. The items stay as they are.",
    ),
    "halfsec.notice": (
        "`param`, `message`",
        "A field that the client set has no effect here, and why: see "
        "[Fields](fields.md). Once for each time that it is set. Or the call's language is one "
        "with recognition and a voice only: see [Languages](../how-to/languages.md). With the "
        "`param` `response`: the response in progress is ended before the model ended it, because "
        "it repeated itself without end.",
    ),
    "halfsec.handoff": (
        "`from`, `to`",
        "Another agent has taken over and makes the responses to come; `session.updated` with its "
        "instructions and voice came just before. See [Agents](../how-to/agents.md).",
    ),
    "halfsec.tool": (
        "`item_id`, `name`, `state`, `ms`",
        "A tool that runs on the server: `started`, then `done`, `failed` or `cancelled`. One that "
        "goes on in the background says `background` after `started`, and ends at any time later, "
        "still with the `item_id` of the reply that called it.",
    ),
}
"""Server events of the subprotocol `halfsec.v1`: fields and meaning."""

CLOSE_CODES: Final = (
    (1000, "The call is over: hung up, `session_expired`, idle."),
    (1007, "Text that is not UTF-8."),
    (1008, "A limit or a rule of the server."),
    (1009, "A message that is too large."),
    (1011, "A fault of the server, or no answer to pings. Clients reconnect."),
    (1012, "The server stops. Clients reconnect."),
    (1013, "A part is being restarted, or the state of calls can't be reached. Clients reconnect."),
    (4000, "The beta dialect, behind the error event that says so."),
    (4404, "There is no call to resume, or it can't be read here: open a new one."),
    (4408, "Sent by a client that gives up a connection and will resume."),
    (4409, "The call goes on at another connection of the same client, or at another server."),
)
"""Close codes and their meaning."""


def page() -> str:
    """Markdown of the page."""
    parts = [_HEAD, "## Client events\n", "| event | meaning |", "| --- | --- |"]
    parts += [f"| `{name}` | {CLIENT[name]} |" for name in _READERS]
    parts += ["", "## Server events\n"]
    for name, examples in sorted(server_events().items()):
        parts.append(_event(name, examples))
    parts += [
        "## Events of calls by WebRTC\n",
        "The same events on the data channel `oai-events`, but for `response.output_audio.delta`: "
        "audio travels beside them. These come in addition, each with `response_id`.\n",
        "| event | meaning |",
        "| --- | --- |",
        *(f"| `{name}` | {text} |" for name, text in WEBRTC.items()),
        "",
        "## Extension events\n",
        "Sent only to clients that offered the subprotocol `halfsec.v1` beside `realtime`. "
        "`session.update` of such a client may have `session.halfsec` with `pace_ms` and "
        "`budget_ms`. How to use them: [Clients of your own](../how-to/clients.md).\n",
        "| event | fields | meaning |",
        "| --- | --- | --- |",
    ]
    parts += [f"| `{name}` | {fields} | {text} |" for name, (fields, text) in EXTENSIONS.items()]
    parts += ["", "## Close codes\n", "| code | meaning |", "| --- | --- |"]
    parts += [f"| {code} | {text} |" for code, text in CLOSE_CODES]
    return "\n".join(parts) + "\n"


def server_events() -> dict[str, list[dict[str, Any]]]:
    """Events that the protocol sends, by name: one of every shape."""
    found: dict[str, list[dict[str, Any]]] = {}
    for frame in frames_of_every_kind():
        event = json.loads(frame)
        found.setdefault(event["type"], []).append(event)
    return found


def _event(name: str, examples: list[dict[str, Any]]) -> str:
    fields = {key: None for event in examples for key in event if key not in ("type", "event_id")}
    listed = ", ".join(f"`{key}`" for key in fields) or "none of its own"
    example = json.dumps(_shortened(examples[0]), indent=2, ensure_ascii=False)
    indented = "\n".join(f"    {line}" for line in example.splitlines())
    return (
        f"### {name}\n\n{SERVER[name]}\n\nFields: `event_id`, {listed}.\n\n"
        f'??? example "Example"\n\n    ```json\n{indented}\n    ```\n'
    )


def _shortened(value: Any) -> Any:
    """Without long audio and instructions."""
    if isinstance(value, dict):
        return {key: _shortened(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shortened(inner) for inner in value]
    if isinstance(value, str) and len(value) > 60:
        return f"{value[:40]}..."
    return value
