"""Recognition of one call's speech by a recognizer on another server.

Where the server has Realtime sessions, the call has one, opened when the call begins and again
whenever it breaks; it gets the audio with every partial job, and its words are the partials. An
early or a final pass is a commit. Without a session a pass is an upload, of which there are only
early and final ones, and no partials. Early passes are made as by a recognizer of this process, in
the first 32 ms of a silence, and a final over the same words takes theirs, or waits for them.

The ladder of a pass: the session; an upload, where the session breaks, or has not answered in half
of the time; the recognizer of this process, where there is one, also while the server is known to
fail. Else the pass fails as with a recognizer of this process that fails, and the caller hears an
apology. No pass takes longer than `asr.remote_timeout_s`; a final that waits for an early pass
which fails tries once more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import websockets.asyncio.client as websockets_client
from websockets.exceptions import ConnectionClosed

import asr
from agent.errors import StageError
from agent.stages.stall_timeout import stall_timeout
from asr.recognition.final_reuse import covers_same_words

from .api_server import PROBE_S
from .recovery import recovery_wait_s
from .remote_error import RemoteError
from .transcription_server import TranscriptionServer
from .transcription_session import Pass, TranscriptionSession

PARTIAL_INTERVAL_MS: Final = 200
"""New audio between two partial jobs with a Realtime session: how late it gets the audio. Shorter:
more messages; longer: words come later."""

SESSION_SHARE: Final = 0.5
"""Share of a pass's time that is left to the session before an upload is tried."""


MAX_PENDING: Final = 2
"""Passes of a call that a server works on at once, in a session: no commit can be taken back. More,
and a server that is slow has ever more to do for pauses that are long over."""


@dataclass(frozen=True, slots=True)
class LocalRecognizer:
    """The recognizer of this process that answers where the server does not."""

    decode: Callable[[asr.DecodeJob, int], Awaitable[asr.Hypothesis | None]]
    is_ready: Callable[[], bool]
    set_options: Callable[[asr.TranscriptionOptions], None] = lambda options: None


class RemoteRecognizer:
    """A `JobDecoder` (`agent/stages/transcription_jobs.py`) of one call. One event loop."""

    def __init__(
        self,
        server: TranscriptionServer,
        local: LocalRecognizer | None = None,
        languages: Sequence[str] = (),
    ) -> None:
        """`languages`: those that the server is asked for; empty: only its own."""
        self.languages = tuple(languages) or (server.language,)
        self._server = server
        self._local = local
        self._language = server.language
        self._session = CallSession(server)
        self._reuse = asr.FinalReuse()
        self._early: tuple[asr.DecodeJob, asyncio.Future[asr.Hypothesis | None]] | None = None
        """The early pass that is being made, and its result; None: it failed."""
        self._told = ""
        """Words of the last partial."""

    @property
    def takes_prompts(self) -> bool:
        """No: a server that refuses one would count as failing for all calls."""
        return False

    @property
    def finds_language(self) -> bool:
        """No: a server says at most what it took the language for, once it has transcribed it."""
        return False

    def set_options(self, options: asr.TranscriptionOptions) -> None:
        """See `JobDecoder`. An open session is given up for one in another language; there is no
        prompt."""
        if self._local is not None:
            self._local.set_options(options)
        language = options.language or self._server.language
        if language == self._language:
            return
        self._language = language
        self._reuse, self._early = asr.FinalReuse(), None
        self._session.set_language(language)

    async def run(self) -> None:
        """Keep the call's session open until cancelled."""
        await self._session.run()

    async def decode(self, job: asr.DecodeJob, priority: int) -> asr.Hypothesis | None:
        """See `JobDecoder.decode`."""
        if job.kind == "partial":
            return await self._partial(job)
        if job.kind == "final" and self._early is not None:
            early, result = self._early
            if covers_same_words(early, job):
                hypothesis = await asyncio.shield(result)  # others may wait for it
                if hypothesis is not None and hypothesis.text:
                    return replace(hypothesis, taken_over=True)
        reuse = self._reuse  # that of the language which is asked for now
        if (known := reuse.known(job)) is not None:
            return known
        if job.kind == "early":
            return await self._decoded_early(job, priority, reuse)
        hypothesis = await self._decoded(job, priority)
        if hypothesis is not None:
            reuse.note(job, hypothesis)
        return hypothesis

    async def _decoded_early(
        self, job: asr.DecodeJob, priority: int, reuse: asr.FinalReuse
    ) -> asr.Hypothesis | None:
        """A pass whose words a final may wait for. Raises StageError."""
        result: asyncio.Future[asr.Hypothesis | None] = asyncio.get_running_loop().create_future()
        self._early = job, result
        try:
            hypothesis = await self._decoded(job, priority)
            if hypothesis is not None:
                reuse.note(job, hypothesis)
                result.set_result(hypothesis)
            return hypothesis
        finally:
            if not result.done():
                result.set_result(None)
            if self._early is not None and self._early[1] is result:
                self._early = None

    async def _partial(self, job: asr.DecodeJob) -> asr.Hypothesis | None:
        """Words that the session has sent so far, where they are new."""
        words = await self._session.hear(job)
        if not words or words == self._told:
            return None
        self._told = words
        return asr.Hypothesis(words)

    async def _decoded(self, job: asr.DecodeJob, priority: int) -> asr.Hypothesis | None:
        """Raises StageError."""
        self._told = ""
        local = self._local if self._local is not None and self._local.is_ready() else None
        if local is not None and self._server.is_down:  # it is watched, and may recover
            return await local.decode(job, priority)
        timeout_s = self._server.timeout_s
        try:
            if self._session.is_open:
                text = await self._session.transcribe(job, timeout_s * SESSION_SHARE)
                timeout_s *= 1 - SESSION_SHARE
            else:
                text = None
            if text is None:
                text = await self._server.transcribe(
                    job.pcm, timeout_s, is_last_resort=local is None, language=self._language
                )
        except RemoteError as error:
            if local is not None:
                return await local.decode(job, priority)
            raise StageError("asr", f"The recognition server {error.reason}.") from error
        hypothesis = asr.Hypothesis(text, audio_s=len(job.pcm) / asr.RATE_HZ)
        if not hypothesis.is_garbage:
            return hypothesis
        if local is not None:
            return await local.decode(job, priority)
        raise StageError("asr", "The recognition server gave unreadable text.")


class CallSession:
    """Realtime transcription session of one call, opened anew when it breaks."""

    def __init__(self, server: TranscriptionServer) -> None:
        self._server = server
        self._language = server.language
        self._open: _Open | None = None
        self._sending = asyncio.Lock()
        """Events of one job follow each other."""
        self._waiting: dict[Pass, asyncio.Future[str | None]] = {}
        """Words of the passes under way; None: there will be none."""
        self._settled = asyncio.Event()
        """Set when a pass is over, or all are."""

    async def run(self) -> None:
        """Keep a session open until cancelled, where the server has them."""
        num_failed = 0
        while True:
            language = self._language
            if self._server.has_sessions:
                try:
                    async with self._server.session(language) as (socket, session):
                        num_failed = 0
                        if language == self._language:  # else it changed meanwhile
                            await self._listen(_Open(socket, session))
                except RemoteError:
                    num_failed += 1
                if language != self._language:
                    continue
            wait_s = recovery_wait_s(num_failed - 1) if num_failed else PROBE_S
            await asyncio.sleep(min(wait_s, PROBE_S))

    async def _listen(self, used: "_Open") -> None:
        """Use a session, and take in its events until it breaks."""
        self._open = used
        try:
            while True:
                self._settle(used.session.receive(await used.socket.recv()))
        finally:  # before it is closed, which may take a while
            self._lose()

    def set_language(self, language: str) -> None:
        """Open the next session in this language. One that is open is given up."""
        if language == self._language:
            return
        self._language = language
        if self._open is not None:
            self._open.socket.transport.abort()
            self._lose()

    @property
    def is_open(self) -> bool:
        """There is a session at present."""
        return self._open is not None

    async def hear(self, job: asr.DecodeJob) -> str:
        """Send a job's audio, as far as it is new; returns the words that have come so far."""
        used, timeout_s = self._open, self._server.timeout_s * SESSION_SHARE
        try:
            async with stall_timeout(timeout_s), self._sending:
                used = self._open
                if used is None:
                    return ""
                await self._send(used, used.session.hear(job))
                return used.session.words
        except TimeoutError:
            self._give_up(used, timeout_s)
            return ""

    async def transcribe(self, job: asr.DecodeJob, timeout_s: float) -> str | None:
        """Words of a job by a commit; None where there is no session, or it has none in time."""
        used, made = self._open, None
        try:
            async with stall_timeout(timeout_s):
                await self._room()
                async with self._sending:
                    used = self._open
                    if used is None:
                        return None
                    made, events = used.session.commit(job)
                    words: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
                    self._waiting[made] = words
                    await self._send(used, events)
                return await words
        except TimeoutError:
            self._give_up(used, timeout_s)
            return None
        finally:
            if made is not None:
                self._waiting.pop(made, None)

    async def _room(self) -> None:
        """Wait until few enough passes are under way. One that is stale by then was never sent."""
        while self._open is not None and self._open.session.num_pending >= MAX_PENDING:
            self._settled.clear()
            await self._settled.wait()

    async def _send(self, used: "_Open", events: Iterable[str]) -> None:
        """Send all of these events, or give the session up: what the server has got is not known
        otherwise."""
        try:
            for event in events:
                await used.socket.send(event)
        except ConnectionClosed:
            return  # `run` learns of it
        except BaseException:
            used.socket.transport.abort()
            raise

    def _give_up(self, used: "_Open | None", timeout_s: float) -> None:
        if used is None:
            return
        self._server.session_failed(RemoteError(f"did not answer within {timeout_s:g} s"))
        used.socket.transport.abort()
        if self._open is used:
            self._lose()

    def _lose(self) -> None:
        self._open = None
        self._settled.set()
        for words in self._waiting.values():
            if not words.done():
                words.set_result(None)

    def _settle(self, over: Pass | None) -> None:
        if over is None:
            return
        self._settled.set()
        if over.text is not None:
            self._server.passed()
        words = self._waiting.get(over)
        if words is not None and not words.done():
            words.set_result(over.text)


@dataclass(frozen=True, slots=True)
class _Open:
    """A session that takes audio."""

    socket: websockets_client.ClientConnection
    session: TranscriptionSession
