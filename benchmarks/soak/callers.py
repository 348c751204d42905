"""Callers of a soak: each visits the server again and again, every visit of another kind.

Kinds take turns, so that a few callers cover all of them. A visit lasts seconds to a minute: a call
over the voice socket or as a carrier makes it, or a request to the HTTP API.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import httpx
import numpy as np

from agent.client import events as ev
from agent.client.call import Call, connect
from agent.client.errors import CallEndedError, ConnectError
from agent.client.simulated_caller.spoken_turn import SpokenTurn
from agent.http.auth.cli_credentials import entry_at
from asr.audio.samples import RATE_HZ
from benchmarks.callers.lossy_line import LineQuality
from benchmarks.signals.hesitations import room_tone
from benchmarks.signals.recordings import TurnRecording, wav_bytes
from benchmarks.voice.harness import CallerPlan, HeldCall, hold
from benchmarks.voice.phone import hold as hold_phone_call
from latency_budget.account.clock import SystemClock

HEARD_S: Final = 2.0
"""Time in s of each answer that is heard, but for callers who interrupt."""
VISIT_PATIENCE: Final = 8
"""Timeout of a visit, as a multiple of the timeout of an answer. One that is not over by then is an
error."""

REFUSALS: Final = (429, 503)
"""HTTP statuses of a server that takes no more."""

PAUSE_S: Final = 0.7
"""Length of a hesitation."""

_TEXTS: Final = (
    "What is the capital of France?",
    "Name three colours.",
    "How many days does a week have?",
    "Tell me something about the sea.",
)
LINE: Final = LineQuality("1 % lost, 20 ms of jitter", loss=0.01, jitter_ms=20.0)


@dataclass(slots=True)
class Visit:
    """What one visit gave."""

    kind: str
    at_s: float
    """Time in s of the soak at which it ended."""
    latencies_ms: list[float] = field(default_factory=list)
    """Voice: at the ear. Typed: to the first audio or text. HTTP: to the end of the response."""
    missed: int = 0
    """Turns without an answer."""
    refused: bool = False
    """The server took no further call or request (`REFUSALS`)."""
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class VisitContext:
    """What a visit works with."""

    url: str
    recordings: Sequence[TurnRecording]
    """Those of this visit."""
    rng: random.Random
    patience_s: float = 15.0
    """Timeout in s of an answer: the machine is as busy as was asked for."""

    @property
    def http_url(self) -> str:
        return self.url.replace("ws", "http", 1).partition("/v1/")[0]


def _of_exchanges(visit: Visit, exchanges: Sequence[SpokenTurn], errors: Sequence[str]) -> None:
    visit.latencies_ms += [e.e2e_ear_ms for e in exchanges if e.e2e_ear_ms is not None]
    # A reply that began before the recording ended was a cut-in, and is counted as answered.
    visit.missed += sum(not e.answered and not e.cut_in and not e.replies for e in exchanges)
    visit.errors += errors


async def _spoken(context: VisitContext, visit: Visit, plan: CallerPlan) -> None:
    held: HeldCall = await hold(context.recordings, context.url, plan)
    _of_exchanges(visit, held.exchanges, held.all_errors())


async def _recordings(context: VisitContext, visit: Visit) -> None:
    await _spoken(context, visit, CallerPlan(HEARD_S, context.patience_s))


async def _hesitations(context: VisitContext, visit: Visit) -> None:
    halting = [with_pause(each, context.rng) for each in context.recordings]
    plan = CallerPlan(HEARD_S, context.patience_s)
    held = await hold(halting, context.url, plan)
    _of_exchanges(visit, held.exchanges, held.all_errors())


async def _barge_ins(context: VisitContext, visit: Visit) -> None:
    plan = CallerPlan(None, context.patience_s, barge_in_seed=context.rng.randrange(1 << 30))
    await _spoken(context, visit, plan)


async def _telephone(context: VisitContext, visit: Visit) -> None:
    by_line = [each.by_telephone() for each in context.recordings]
    seed = context.rng.randrange(1 << 30)
    held, _ = await hold_phone_call(
        by_line, context.url, CallerPlan(None, context.patience_s), LINE, seed
    )
    _of_exchanges(visit, held.exchanges, held.all_errors())


async def _typed(context: VisitContext, visit: Visit) -> None:
    async with _call(context) as call:
        for text in context.rng.sample(_TEXTS, 2):
            await _answered(call, visit, context, partial(call.send_text, text))


async def _tools(context: VisitContext, visit: Visit) -> None:
    async def current_time() -> str:
        """The tool."""
        return "It is noon."

    async with _call(context) as call:
        await call.tools.add(current_time, "Tells the time of day.", {"type": "object"})

        async def ask() -> None:
            await call.send_text("What time is it?", reply=False)
            await call.create_reply(tool_choice="required")

        await _answered(call, visit, context, ask)


def _call(context: VisitContext) -> Any:
    entry = entry_at(context.url)
    return connect(context.url, api_key=entry.api_key, tls=entry.tls, reconnect=False, wait_s=10.0)


async def _answered(
    call: Call, visit: Visit, context: VisitContext, ask: Callable[[], Awaitable[None]]
) -> None:
    """Ask, and wait for the end of the reply; a reply of tool calls is followed by another."""
    clock = SystemClock()
    asked_ns = clock.now_ns()
    first_ns: int | None = None
    await ask()
    try:
        async with asyncio.timeout(context.patience_s):
            calls_tool = False
            async for event in call.events():
                match event:
                    case ev.ReplyAudio(at_ns=at_ns) | ev.ReplyText(at_ns=at_ns):
                        first_ns = first_ns or at_ns
                    case ev.FunctionCall():
                        calls_tool = True
                    case ev.ReplyDone(error_message=message):
                        if message is not None:
                            visit.errors.append(message)
                        if not calls_tool:
                            break
                        calls_tool = False
                    case ev.Closed(code=code, reason=reason):
                        visit.errors.append(f"The call has ended: {code} {reason}.")
                        break
    except TimeoutError:
        pass  # counted as missed, unless something was heard
    if first_ns is None:
        visit.missed += 1
    else:
        visit.latencies_ms.append((first_ns - asked_ns) / 1e6)


async def _post(context: VisitContext, visit: Visit, path: str, **options: Any) -> None:
    clock = SystemClock()
    began_ns = clock.now_ns()
    headers = entry_at(context.url).headers()
    async with httpx.AsyncClient(
        trust_env=False, headers=headers, timeout=2 * context.patience_s
    ) as http:
        response = await http.post(f"{context.http_url}{path}", **options)
    if response.status_code == httpx.codes.OK and response.content:
        visit.latencies_ms.append((clock.now_ns() - began_ns) / 1e6)
    elif response.status_code in REFUSALS:
        visit.refused = True
    else:
        visit.errors.append(f"{path}: HTTP {response.status_code}: {response.text[:200]}")


async def _chat(context: VisitContext, visit: Visit) -> None:
    messages = [{"role": "user", "content": context.rng.choice(_TEXTS)}]
    body = {"model": "default", "messages": messages, "max_tokens": 40}
    await _post(context, visit, "/v1/chat/completions", json=body)


async def _speech(context: VisitContext, visit: Visit) -> None:
    body = {"model": "tts-1", "voice": "alloy", "input": context.rng.choice(_TEXTS)}
    await _post(context, visit, "/v1/audio/speech", json={**body, "response_format": "wav"})


async def _transcriptions(context: VisitContext, visit: Visit) -> None:
    recording = context.recordings[0]
    files = {"file": ("turn.wav", wav_bytes(recording.pcm, recording.rate_hz), "audio/wav")}
    await _post(
        context, visit, "/v1/audio/transcriptions", files=files, data={"model": "whisper-1"}
    )


KINDS: Final[dict[str, Callable[[VisitContext, Visit], Awaitable[None]]]] = {
    "recordings": _recordings,
    "chat": _chat,
    "barge-ins": _barge_ins,
    "typed": _typed,
    "telephone": _telephone,
    "speech": _speech,
    "hesitations": _hesitations,
    "tools": _tools,
    "transcriptions": _transcriptions,
}
"""The kinds, in the order in which a caller makes them."""

TURNS_A_VISIT: Final = 3


async def make_visit(kind: str, context: VisitContext, elapsed_s: Callable[[], float]) -> Visit:
    """Make one visit. All that goes wrong is an error of the visit."""
    visit = Visit(kind, 0.0)
    limit_s = VISIT_PATIENCE * context.patience_s
    try:
        async with asyncio.timeout(limit_s):
            await KINDS[kind](context, visit)
    except TimeoutError:
        visit.errors.append(f"not over after {limit_s:g} s")
    except Exception as error:
        _note_failure(visit, error)
    visit.at_s = elapsed_s()
    return visit


def _note_failure(visit: Visit, error: Exception) -> None:
    if isinstance(error, ExceptionGroup):
        for each in error.exceptions:
            _note_failure(visit, each)
    elif isinstance(error, ConnectError) and error.status in REFUSALS:
        visit.refused = True
    elif isinstance(error, ConnectError | CallEndedError | httpx.HTTPError | OSError):
        visit.errors.append(f"{type(error).__name__}: {error}")
    else:
        raise error


def with_pause(recording: TurnRecording, rng: random.Random) -> TurnRecording:
    """The recording with `PAUSE_S` of room tone at the quietest place of its middle half."""
    level = recording.pcm.astype(np.float32) / 32768
    length_s = len(level) / recording.rate_hz
    middle = level[len(level) // 4 : 3 * len(level) // 4]
    size = max(1, recording.rate_hz // 50)
    frames = middle[: len(middle) // size * size].reshape(-1, size)
    if not len(frames):
        return recording
    place = len(level) // 4 + int(np.argmin((frames**2).mean(1))) * size + size // 2
    tone = room_tone(round(PAUSE_S * RATE_HZ), np.random.default_rng(rng.randrange(1 << 30)))
    num_samples = round(PAUSE_S * recording.rate_hz)
    at = np.arange(num_samples) * (len(tone) / num_samples)
    pause = np.interp(at, np.arange(len(tone)), tone)
    spliced = np.concatenate([level[:place], pause, level[place:]])
    assert len(spliced) / recording.rate_hz > length_s
    pcm = np.clip(spliced * 32768, -32768, 32767).astype(np.int16)
    return TurnRecording(recording.path, pcm, recording.rate_hz, None)
