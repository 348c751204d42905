"""Recordings of calls with two channels: the caller's turns, found by energy alone."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from agent.errors import BenchError
from asr.audio.files import read_file
from asr.audio.samples import RATE_HZ, VOICED_FRAME, Pcm, last_voiced_sample
from benchmarks.signals.recordings import CALL, find_recordings
from benchmarks.signals.stereo_calls import TAIL_S, CallTurns, Channel, call_turns, read_call

RECORDINGS = Path(__file__).parents[1] / "recordings"
GREETING, QUESTION, REQUEST, ANSWER = (
    "all-circuits-busy-now", "vm-nobodyavail", "auth-incorrect", "conf-locked",
)  # fmt: skip
FRAME_S = VOICED_FRAME / RATE_HZ


def spoken(name: str) -> Pcm:
    """A recording from its first voiced frame to its last."""
    pcm = read_file(RECORDINGS / f"{name}.wav")
    first, last = last_voiced_sample(pcm[::-1]), last_voiced_sample(pcm)
    assert first is not None
    assert last is not None
    return pcm[len(pcm) - 1 - first : last + 1]


class Call:
    """Two channels that are written one after the other, with noise 60 dB below full scale."""

    def __init__(self) -> None:
        self.caller = np.zeros(0, np.float32)
        self.agent = np.zeros(0, np.float32)
        self.ends: list[float] = []
        """Ends of the caller's words in s."""

    def silence(self, seconds: float) -> "Call":
        return self._add(np.zeros(round(seconds * RATE_HZ), np.float32))

    def says(self, name: str, gain: float = 1.0) -> "Call":
        self._add(spoken(name) * np.float32(gain))
        self.ends.append(len(self.caller) / RATE_HZ)
        return self

    def replies(self, name: str) -> "Call":
        return self._add(np.zeros(len(spoken(name)), np.float32), spoken(name))

    def _add(self, caller: Pcm, agent: Pcm | None = None) -> "Call":
        silent = np.zeros(len(caller), np.float32)
        self.caller = np.concatenate([self.caller, caller])
        self.agent = np.concatenate([self.agent, silent if agent is None else agent])
        return self

    def channels(self, leak_db: float = 40.0) -> tuple[Pcm, Pcm]:
        """Caller and agent, each with what leaks of the other's voice."""
        rng = np.random.default_rng(7)
        leak = np.float32(10 ** (-leak_db / 20))
        noise = rng.normal(0, 1e-4, (2, len(self.caller))).astype(np.float32)
        return self.caller + leak * self.agent + noise[0], self.agent + leak * self.caller + noise[
            1
        ]

    def turns(self, channel: Channel = "found", leak_db: float = 40.0) -> CallTurns:
        return call_turns(*self.channels(leak_db), channel)

    def write(self, path: Path, *, left: str = "caller", rate_hz: int = RATE_HZ) -> Path:
        caller, agent = self.channels()
        sides = (caller, agent) if left == "caller" else (agent, caller)
        step = RATE_HZ // rate_hz
        soundfile.write(path, np.stack(sides, axis=1)[::step], rate_hz, subtype="PCM_16")
        return path


def two_turns() -> Call:
    """A greeting; a request with a pause of 0.8 s in it, answered after 0.7 s; another one."""
    call = Call().silence(0.5).replies(GREETING).silence(0.6)
    call.says(REQUEST).silence(0.8).says(ANSWER).silence(0.7).replies(QUESTION)
    return call.silence(0.4).says(GREETING).silence(0.9).replies(ANSWER).silence(0.5)


def ends_of(found: CallTurns) -> list[float]:
    return [one.begin_s + one.end / RATE_HZ for one in found.turns]


@pytest.mark.parametrize("leak_db", [25.0, 40.0])
def test_a_turn_ends_where_the_caller_s_last_word_before_a_reply_does(leak_db: float) -> None:
    """The pause inside the first turn is no end."""
    call = two_turns()
    found = call.turns(leak_db=leak_db)
    assert (found.spoken_into, found.unanswered) == (0, 0)
    assert ends_of(found) == [
        pytest.approx(end, abs=2 * FRAME_S) for end in (call.ends[1], call.ends[2])
    ]
    assert [one.reply_s for one in found.turns] == [
        pytest.approx(each, abs=0.1) for each in (0.7, 0.9)
    ]


def test_a_turn_s_sound_is_the_caller_s_alone_with_the_room_behind_it() -> None:
    """The reply is not in it; the silence behind the last word is the recording's own."""
    first, last = two_turns().turns().turns
    behind = first.pcm[first.end + VOICED_FRAME :]
    assert len(behind) / RATE_HZ == pytest.approx(TAIL_S, abs=0.1)
    assert 0 < float(np.abs(behind).max()) < 0.02
    assert float(np.abs(first.pcm[: first.end]).max()) > 0.1
    assert len(last.pcm) > last.end


def test_the_caller_is_the_one_who_does_not_speak_first_or_the_one_that_is_named() -> None:
    call = two_turns()
    caller, agent = call.channels()
    found = [ends_of(call_turns(*sides)) for sides in ((caller, agent), (agent, caller))]
    assert found[0] == found[1]
    assert len(found[0]) == 2
    named = call_turns(caller, agent, "left")
    assert ends_of(named) == found[0]
    other = call_turns(caller, agent, "right")  # the agent's turns: a greeting, a question
    assert len(other.turns) == 2
    assert other.unanswered == 1


def test_an_acknowledgement_of_the_agent_ends_no_turn() -> None:
    call = Call().silence(0.3).replies(GREETING).silence(0.5).says(REQUEST).silence(0.5)
    hum = spoken(ANSWER)[: round(0.3 * RATE_HZ)]
    call._add(np.zeros(len(hum), np.float32), hum).silence(0.5)
    call.says(ANSWER).silence(0.6).replies(QUESTION).silence(0.3)
    assert ends_of(call.turns()) == [pytest.approx(call.ends[1], abs=2 * FRAME_S)]


def test_what_says_nothing_about_an_end_is_counted_and_left_out() -> None:
    call = Call().silence(0.3).replies(GREETING).silence(0.5).says(REQUEST).silence(0.5)
    # The agent speaks into the caller's second half.
    voice, over = spoken(QUESTION), spoken(ANSWER)
    agent = np.zeros(max(len(voice), len(over) + 8000), np.float32)
    caller = agent.copy()
    agent[: len(voice)] = voice
    caller[8000 : 8000 + len(over)] = over
    call._add(caller, agent).silence(0.5).says(ANSWER).silence(2.0)
    found = call.turns()
    assert found == CallTurns((), spoken_into=1, unanswered=1)


def test_calls_are_played_turn_by_turn_with_their_ends_as_labels(tmp_path: Path) -> None:
    call = two_turns()
    call.write(tmp_path / "a.wav")
    call.write(tmp_path / "b.wav", left="agent", rate_hz=8000)
    found = {one.path.name: one for one in find_recordings([tmp_path], 9, 1)}
    assert sorted(found) == [f"{name}-turn-{number:03}.wav" for name in "ab" for number in (1, 2)]
    assert {one.kind for one in found.values()} == {CALL}
    for number in (1, 2):
        one, other = (found[f"{name}-turn-{number:03}.wav"] for name in "ab")
        assert one.voiced_s == pytest.approx(other.voiced_s, abs=3 * FRAME_S)
    assert len(find_recordings([tmp_path], 3, 1)) == 3
    assert len(find_recordings([tmp_path], 9, 1, kind=CALL)) == 4
    with pytest.raises(BenchError, match="no recording of"):
        find_recordings([tmp_path], 9, 1, half="b")


def test_a_channel_that_is_named_is_judged(tmp_path: Path) -> None:
    path = two_turns().write(tmp_path / "a.wav")
    channels: tuple[Channel, ...] = ("found", "left", "right")
    ends = [
        sorted(one.voiced_s or 0 for one in find_recordings([path], 9, 1, caller=each))
        for each in channels
    ]
    assert ends[0] == ends[1]
    assert ends[1] != ends[2]


@pytest.mark.parametrize("second", ["silent", "same"])
def test_two_channels_with_one_voice_are_no_call(tmp_path: Path, second: str) -> None:
    """They are averaged, as before."""
    voice = spoken(QUESTION)
    other = voice if second == "same" else np.zeros_like(voice)
    path = tmp_path / "one.wav"
    soundfile.write(path, np.stack([voice, other], axis=1), RATE_HZ, subtype="PCM_16")
    assert read_call(path) is None
    (one,) = find_recordings([path], 9, 1)
    assert one.path == path
    assert len(one.pcm) == len(voice)
    assert not find_kind_call(path)


def find_kind_call(path: Path) -> bool:
    try:
        return bool(find_recordings([path], 9, 1, kind=CALL))
    except BenchError:
        return False


def test_a_labelled_recording_of_two_channels_stays_one_turn(tmp_path: Path) -> None:
    path = two_turns().write(tmp_path / "a.wav")
    (tmp_path / "a.json").write_text('{"end": 48000, "kind": "hesitant"}')
    (one,) = find_recordings([path], 9, 1)
    assert (one.path, one.kind, one.voiced_s) == (path, "hesitant", 3.0)
