"""A final whose words an early pass has, or is still making, on the recognizer's own thread."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

import asr
from agent.errors import ClientError
from agent.session.api.settings import SemanticVad
from agent.session.ports.stage_ports import SpeechResult
from agent.stages.model_thread import URGENT, ModelThread
from agent.stages.speech_input import SpeechInput, endpointing_for
from agent.stages.transcription_jobs import LocalDecoder
from agent.turn_taking import events as ev
from latency_budget.account.clock import ManualClock

RATE_HZ: Final = 16_000
PATIENCE_S: Final = 60.0
Int16 = npt.NDArray[np.int16]


class Detector:
    def probability(self, frame: npt.NDArray[np.float32], state: asr.VadState) -> float:
        return 0.9 if np.abs(frame).max() > 0.1 else 0.0


class Recognizer:
    """Numbers its passes; waits in each for permission."""

    def __init__(self) -> None:
        self.begun: list[bool] = []
        """Of each pass, whether wider windows were allowed."""
        self.is_begun = threading.Event()
        self.may_go_on = threading.Event()

    def transcribe(self, pcm: npt.NDArray[np.float32], *, fallback: bool) -> asr.Hypothesis:
        self.begun.append(fallback)
        self.is_begun.set()
        assert self.may_go_on.wait(PATIENCE_S)
        return asr.Hypothesis(f"pass {len(self.begun)}")


def said(seconds: float) -> Int16:
    return np.random.default_rng(0).integers(-16_000, 16_000, int(seconds * RATE_HZ), np.int16)


def quiet(seconds: float) -> Int16:
    return np.zeros(int(seconds * RATE_HZ), np.int16)


class Call:
    """A `SpeechInput` that asks for a final at each pause, as a session does."""

    def __init__(
        self,
        detector: ModelThread[Any],
        recognizer: ModelThread[Any],
        listening: asr.ListenerConfig | None = None,
    ) -> None:
        if listening is None:
            listening = asr.ListenerConfig(endpointing=endpointing_for(SemanticVad(), 80))
        judge: ModelThread[Any] = ModelThread(
            "turn", lambda: None
        )  # never asked: it is not running
        self.hearing = SpeechInput(
            listening, detector, LocalDecoder(recognizer), judge, ManualClock(), 80
        )
        self.finals: asyncio.Queue[str] = asyncio.Queue()
        self.paused = asyncio.Event()
        self.found: set[str] = set()
        """Languages that were found."""
        self._revision = 0

    def tell(self, heard: SpeechResult) -> None:
        if isinstance(heard.event, ev.SpeechPaused):
            self._revision += 1
            self.hearing.transcribe(heard.event.utterance, self._revision)
            self.paused.set()
        elif isinstance(heard.event, ev.TranscriptReady):
            self.finals.put_nowait(heard.event.text)
        elif isinstance(heard.event, ev.TranscriptFailed):
            self.finals.put_nowait("failed")
        elif heard.language:
            self.found.add(heard.language)

    async def hear(self, *stretches: Int16) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.hearing.feed(np.concatenate(stretches), RATE_HZ)
            await self.hearing._queue.drained()

    async def final(self) -> str:
        """Its words, once the pass that brought them is forgotten, so that the next may be made:
        a final that takes words over may be done before the pass it has them from."""
        async with asyncio.timeout(PATIENCE_S):
            text = await self.finals.get()
            while self.hearing._stream._pending is not None:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)
            return text


@asynccontextmanager
async def call(
    model: Recognizer, listening: asr.ListenerConfig | None = None
) -> AsyncIterator[Call]:
    detector: ModelThread[Any] = ModelThread("vad", Detector)
    recognizer: ModelThread[Any] = ModelThread("asr", lambda: model)
    await detector.start()
    await recognizer.start()
    made = Call(detector, recognizer, listening)
    running = asyncio.get_running_loop().create_task(made.hearing.run(made.tell))
    try:
        yield made
    finally:
        model.may_go_on.set()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await detector.close()
        await recognizer.close()


async def test_a_final_takes_over_the_words_of_a_pass_that_is_still_being_made() -> None:
    model = Recognizer()
    async with call(model) as made:
        await made.hear(said(0.512), quiet(0.064))
        assert await asyncio.to_thread(model.is_begun.wait, PATIENCE_S)
        assert not made.paused.is_set()
        await made.hear(quiet(0.096))
        assert made.paused.is_set()
        assert made.finals.empty()
        model.may_go_on.set()
        assert await made.final() == "pass 1"
        assert model.begun == [False]


class Broken(Recognizer):
    """Raises in its first passes, or gives garbage."""

    def __init__(self, num_failures: int, garbage: asr.Hypothesis | None = None) -> None:
        super().__init__()
        self.may_go_on.set()
        self._num_failures = num_failures
        self._garbage = garbage

    def transcribe(self, pcm: npt.NDArray[np.float32], *, fallback: bool) -> asr.Hypothesis:
        found = super().transcribe(pcm, fallback=fallback)
        if len(self.begun) > self._num_failures:
            return found
        if self._garbage is None:
            raise RuntimeError("out of order")
        return self._garbage


NO_EARLY = asr.ListenerConfig(endpointing=endpointing_for(SemanticVad(), 80), partial_interval_ms=0)


@pytest.mark.parametrize(("num_failures", "heard"), [(0, "pass 1"), (1, "pass 2"), (2, "failed")])
async def test_a_final_whose_recognizer_fails_is_recognized_by_the_next_one(
    num_failures: int, heard: str
) -> None:
    model = Broken(num_failures)
    async with call(model, NO_EARLY) as made:
        await made.hear(said(0.512), quiet(0.16))
        assert await made.final() == heard
        assert len(model.begun) == min(2, num_failures + 1)


@pytest.mark.parametrize("has_early", [False, True])
@pytest.mark.parametrize(
    "garbage", [asr.Hypothesis("\x00\ufffd" * 9), asr.Hypothesis("Yes.", avg_logprob=np.nan)]
)
async def test_a_final_that_is_garbage_is_recognized_by_the_next_recognizer(
    garbage: asr.Hypothesis, has_early: bool
) -> None:
    model = Broken(1, garbage)
    async with call(model, None if has_early else NO_EARLY) as made:
        await made.hear(said(0.512), quiet(0.064))
        if has_early:
            assert await asyncio.to_thread(model.is_begun.wait, PATIENCE_S)
        await made.hear(quiet(0.096))
        assert await made.final() == "pass 2"


@pytest.mark.parametrize(
    ("text", "is_garbage"),
    [
        ("", False),
        ("Ja.", False),
        ("\u00bfQu\u00e9 tal?\n\u5c11\u3057\ufffd", False),
        ("\ufffd", False),
        ("\ufffd\ufffd", True),
        ("ok\x00\x01", True),
        ("\ue000\udc80 a few words", True),
    ],
)
def test_unreadable_text_is_garbage(text: str, is_garbage: bool) -> None:
    assert asr.Hypothesis(text).is_garbage == is_garbage


async def test_a_retry_is_made_by_the_recognizer_that_failed_whatever_the_language_is_by_then() -> (
    None
):
    first, second = Broken(1), Broken(0)
    threads: list[ModelThread[Any]] = [
        ModelThread("asr", lambda: first),
        ModelThread("asr", lambda: second),
    ]
    for thread in threads:
        await thread.start()
    decoder = LocalDecoder(threads[0], lambda language: threads[language == "de"])
    job = asr.DecodeJob("final", 1, 1, 0, np.zeros(RATE_HZ, np.float32))
    first.may_go_on.clear()
    try:
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            decoding = group.create_task(decoder.decode(job, URGENT))
            await asyncio.to_thread(first.is_begun.wait, PATIENCE_S)
            decoder.set_options(asr.TranscriptionOptions("de"))
            first.may_go_on.set()
        hypothesis = decoding.result()
    finally:
        for thread in threads:
            await thread.close()
    assert hypothesis is not None
    assert (hypothesis.text, len(second.begun)) == ("pass 2", 0)


async def test_a_call_whose_retry_was_in_vain_has_none_until_one_succeeds() -> None:
    """The recognizer is rebuilt for all calls."""
    model = Broken(3)
    async with call(model, NO_EARLY) as made:
        passes = []
        for _ in range(3):
            await made.hear(said(0.512), quiet(0.16))
            passes.append((await made.final(), len(model.begun)))
            made.hearing.close(made.hearing.utterance)
            await made.hear(quiet(1))
        assert passes == [("failed", 2), ("failed", 3), ("pass 4", 4)]


async def test_a_partial_whose_recognizer_fails_is_not_made_again() -> None:
    model = Broken(9)
    async with call(model) as made:
        await made.hear(said(0.512), quiet(0.064))  # no pause yet
        async with asyncio.timeout(PATIENCE_S):
            while made.hearing._stream._pending is not None or not model.begun:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert len(model.begun) == 1


async def test_continued_speech_is_transcribed_again() -> None:
    model = Recognizer()
    model.may_go_on.set()
    async with call(model) as made:
        for number, speech_s in enumerate((0.512, 0.256), start=1):
            model.is_begun.clear()
            await made.hear(said(speech_s), quiet(0.064))
            # Else the final, which is more urgent, may come before the early pass has begun.
            assert await asyncio.to_thread(model.is_begun.wait, PATIENCE_S)
            await made.hear(quiet(0.096))
            assert await made.final() == f"pass {number}"
        assert model.begun == [False, False]


class Prompted(Recognizer):
    """Hears its own options."""

    languages = ("en", "de")

    def transcribe(
        self,
        pcm: npt.NDArray[np.float32],
        *,
        fallback: bool,
        options: asr.TranscriptionOptions = asr.AS_LOADED,
    ) -> asr.Hypothesis:
        return asr.Hypothesis(f"{options.language} {options.prompt}".strip())


class Finding(Recognizer):
    """Finds German, as surely as it is told."""

    languages = ("en", "de")
    finds_language = True
    text = "Guten Tag."
    probability = 0.9

    def transcribe(
        self,
        pcm: npt.NDArray[np.float32],
        *,
        fallback: bool,
        options: asr.TranscriptionOptions = asr.AS_LOADED,
    ) -> asr.Hypothesis:
        found = "de" if "de" in options.candidates else ""
        return asr.Hypothesis(self.text, language=found, language_prob=self.probability)


@pytest.mark.parametrize(
    ("seconds", "text", "probability", "found"),
    [
        (1.2, "Guten Tag.", 0.9, {"de"}),
        (0.5, "Guten Tag.", 0.9, set()),
        (1.2, "", 0.9, set()),
        (1.2, "Guten Tag.", 0.6, set()),
    ],
)
async def test_a_language_is_found_by_enough_words_that_are_certain(
    seconds: float, text: str, probability: float, found: set[str]
) -> None:
    model = Finding()
    model.text, model.probability = text, probability
    async with call(model) as made:
        assert made.hearing.set_transcription(
            asr.TranscriptionOptions("en", candidates=("en", "de"))
        )
        await made.hear(said(seconds), quiet(0.2))
        assert await made.final() == text
        assert made.found == found
        await made.hear(quiet(0.1))
        assert made.hearing.set_transcription(asr.TranscriptionOptions("en"))
        made.found.clear()
        await made.hear(said(1.2), quiet(0.2))
        assert await made.final() == text
        assert made.found == set(), "it was not to be found"


async def test_a_recognizer_of_one_language_finds_none() -> None:
    async with call(Prompted()) as made:
        with pytest.raises(ClientError, match="does not find the language") as refused:
            made.hearing.set_transcription(asr.TranscriptionOptions("en", candidates=("en", "de")))
        assert refused.value.param == "session.audio.input.transcription.language"
        assert made.hearing.set_transcription(asr.TranscriptionOptions("de", "Anna."))


async def test_a_sessions_language_and_prompt_go_with_every_pass() -> None:
    async with call(Prompted()) as made:
        hearing = made.hearing
        assert hearing.set_transcription(asr.TranscriptionOptions("de", "Anna."))
        await made.hear(said(0.6), quiet(0.2))
        assert await made.final() == "de Anna."
        with pytest.raises(ClientError, match="knows en, de") as refused:
            hearing.set_transcription(asr.TranscriptionOptions("fr"))
        assert refused.value.param == "session.audio.input.transcription.language"
        await made.hear(said(0.6), quiet(0.2))
        assert await made.final() == "de Anna.", "what was refused has changed nothing"
        assert hearing.set_transcription(asr.AS_LOADED)
        await made.hear(said(0.6), quiet(0.2))
        assert await made.final() == "None"


async def test_settled_words_are_final_where_nothing_was_said_since() -> None:
    """The final has no audio then: a server would refuse it, and the words before be lost."""
    model = Recognizer()
    model.may_go_on.set()
    listening = asr.ListenerConfig(endpointing=None, partial_interval_ms=0, settle_after_s=3.0)
    async with call(model, listening) as made:
        await made.hear(said(1.0), quiet(2.2))
        assert await asyncio.to_thread(model.is_begun.wait, PATIENCE_S)
        while made.hearing._stream._pending is not None:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)
        utterance = await made.hearing.commit()
        made.hearing.transcribe(utterance, 1)
        assert await made.final() == "pass 1"
        assert len(model.begun) == 1
