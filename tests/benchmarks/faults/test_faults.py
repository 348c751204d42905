"""`halfsec bench faults` without its server: silence, faults, network, verdicts, damaged files."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

import asr
from agent.client import events as ev
from agent.client.simulated_caller.caller import SimulatedCaller
from agent.client.simulated_caller.spoken_turn import SpokenTurn
from agent.errors import BenchError
from benchmarks.callers import control_socket
from benchmarks.callers.control_socket import request
from benchmarks.callers.server_process import OwnServer, ServerFigures
from benchmarks.faults import command, faulty_server
from benchmarks.faults.damaged_models import (
    VOICE,
    DamagedStart,
    damage,
    damageable,
    home_with_copy,
    model_files,
    package_with_copy,
    voice_package,
)
from benchmarks.faults.fault_case import Aftermath, FaultCase, Surroundings, nothing
from benchmarks.faults.faulty_server import FaultPoint, Faults, InjectedError
from benchmarks.faults.network import NetworkQuality, bad_network
from benchmarks.faults.plan import CASES
from benchmarks.faults.report import (
    FAILS,
    NOT_RUN,
    PASSES,
    FaultRow,
    MemoryFigures,
    markdown,
    row_of,
    row_of_start,
)
from benchmarks.faults.silence import longest_silence_ns
from benchmarks.faults.witness import Ear, Observation, Witness, in_words, said_by_model
from languages import ENGLISH
from latency_budget.account.clock import SystemClock


@pytest.mark.parametrize(
    ("signs", "sounds", "longest"),
    [
        ([], [], 100),
        ([30], [], 70),
        ([30, 60], [], 40),
        ([], [(20, 90)], 20),
        ([95], [(20, 90)], 20),
        ([5, 150], [(-50, 10)], 90),
        ([300], [(150, 200)], 100),
    ],
)
def test_the_longest_silence(signs: list[int], sounds: list[tuple[int, int]], longest: int) -> None:
    assert longest_silence_ns([(0, 100)], signs, sounds) == longest


def test_only_waits_count() -> None:
    assert longest_silence_ns([(0, 10), (500, 540)], [], []) == 40
    assert longest_silence_ns([], [], []) == 0


class Model:
    """A model with one method."""

    def answer(self, *, final: bool) -> float:
        return 0.5


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    monkeypatch.setattr(Model, "answer", Model.answer)
    point = FaultPoint(Model, "answer", lambda result: float("nan"), lambda kw: bool(kw["final"]))
    monkeypatch.setattr(faulty_server, "POINTS", {"model": point})
    monkeypatch.setattr(faulty_server, "HANG_S", 0.0)
    found = Faults()
    found._wrap("model", point)
    return found


def test_a_fault_strikes_as_often_as_armed_and_where_it_is_meant_to(faults: Faults) -> None:
    model = Model()
    faults.handle({"stage": "model", "how": "raise", "times": 2})
    assert model.answer(final=False) == 0.5
    for _ in range(2):
        with pytest.raises(InjectedError):
            model.answer(final=True)
    assert model.answer(final=True) == 0.5
    assert faults.handle({}) == {"hits": {"model": 2}}


def test_other_ways_to_fail(faults: Faults) -> None:
    model = Model()
    faults.handle({"stage": "model", "how": "garbage"})
    assert np.isnan(model.answer(final=True))
    faults.handle({"stage": "model", "how": "die"})
    with pytest.raises(SystemExit):
        model.answer(final=True)
    faults.handle({"stage": "model", "how": "hang"})
    assert model.answer(final=True) == 0.5  # after its time


def test_a_loop_that_is_not_there_cannot_be_blocked(faults: Faults) -> None:
    with pytest.raises(RuntimeError, match="no event loop"):
        faults.handle({"block_s": 0.5})


def test_unknown_faults_are_refused(faults: Faults) -> None:
    with pytest.raises(ValueError, match="no such fault"):
        faults.handle({"stage": "model", "how": "sulk"})


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 14):
        writer.write(data)
    writer.close()


@pytest.mark.parametrize(
    "quality",
    [
        NetworkQuality(),
        NetworkQuality(delay_s=0.01),
        NetworkQuality(loss=0.5, retransmission_s=0.01),
        NetworkQuality(bytes_per_s=1e7),
    ],
    ids=["good", "delay", "loss", "slow"],
)
async def test_the_network_loses_no_byte_and_reorders_none(quality: NetworkQuality) -> None:
    sent = bytes(range(256)) * 1000
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    async with server, bad_network(server.sockets[0].getsockname()[1]) as network:
        network.quality = quality
        reader, writer = await asyncio.open_connection("127.0.0.1", network.port)
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        network.cut()
        assert await reader.read() == b""
        writer.close()


async def test_half_open_swallows_until_it_is_cut() -> None:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    async with server, bad_network(server.sockets[0].getsockname()[1]) as network:
        reader, writer = await asyncio.open_connection("127.0.0.1", network.port)
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        network.quality = replace(network.quality, half_open=True)
        writer.write(b"swallowed")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.read(1)
        network.cut()
        assert await reader.read() == b""
        writer.close()


def test_the_ear_counts_audible_sound_and_forgets_what_was_not_played() -> None:
    ear = Ear()
    loud, quiet = np.full(24_000, 9000, np.int16), np.zeros(24_000, np.int16)
    ear.note(ev.ReplyAudio("r", "i", loud, 24_000, 0))
    ear.note(ev.ReplyAudio("r", "i", loud, 24_000, 10))
    ear.note(ev.ReplyAudio("r", "i", quiet, 24_000, 20))
    assert ear.sounds == [(0, 10**9), (10**9, 2 * 10**9)]
    ear.note(ev.SpeechStarted("i", 0, 500_000_000))
    assert ear.sounds == [(0, 500_000_000)]
    assert ear.signs == [0, 10, 20, 500_000_000]


def reply(response_id: str, status: str, text: str, error: str | None = None) -> ev.ReplyDone:
    return ev.ReplyDone(response_id, status, None, text, error, {}, 0)


def test_an_apology_or_a_sound_without_words_is_no_answer() -> None:
    ear = Ear()
    for done in (
        reply("whole", "completed", "Yes."),
        reply("long", "incomplete", "Yes, and"),
        reply("apology", "failed", "Sorry, something went wrong.", "asr failed"),
        reply("cancelled apology", "cancelled", ""),
        reply("wordless", "completed", ""),
        reply("holding", "completed", "One moment."),
        reply("apology alone", "completed", ENGLISH.sentences.apology),
    ):
        ear.note(done)
    answered = {
        name: ear.is_answered(SpokenTurn(1, np.zeros(1, np.int16), 1, replies=[name], e2e_ear_ms=9))
        for name in (
            *("whole", "long", "apology", "cancelled apology", "wordless", "none"),
            *("holding", "apology alone"),
        )
    }
    assert [name for name in answered if answered[name]] == ["whole", "long"]
    later = SpokenTurn(1, np.zeros(1, np.int16), 1, replies=["whole"], e2e_ear_ms=9, errors=["x"])
    assert not ear.is_answered(later)
    silent = SpokenTurn(1, np.zeros(1, np.int16), 1, replies=["whole"])
    assert not ear.is_answered(silent)


def test_what_counts_as_the_answer_is_without_the_services_own_sentences() -> None:
    assert said_by_model("One moment. Yes, it is.") == "Yes, it is."
    assert said_by_model(" Let me see, One moment. ") == ""
    assert said_by_model("I said: One moment.") == "I said: One moment."
    ear = Ear()
    ear.note(reply("a", "completed", "One moment. Yes."))
    turn = SpokenTurn(1, np.zeros(1, np.int16), 1, replies=["none", "a"], e2e_ear_ms=9)
    assert ear.answer_to(turn) == "Yes."


async def test_a_short_fault_strikes_at_the_end_of_speech() -> None:
    struck_ns = []

    async def strike() -> None:
        struck_ns.append(SystemClock().now_ns())

    said_ns = SystemClock().now_ns() + 100_000_000
    exchange = SpokenTurn(1, np.zeros(1, np.int16), 1, last_voiced_ns=said_ns)
    caller = cast("SimulatedCaller", SimpleNamespace(closed=None))
    witness = Witness("", [], strike, strike, at_end_of_speech=True)
    await witness._strike_during(exchange, caller)
    assert struck_ns[0] >= said_ns
    assert witness._struck_ns == said_ns  # so that this turn counts as one of after the fault
    short = {case.name for case in CASES if case.at_end_of_speech}
    assert short == {"event loop blocked for 500 ms", "SIGSTOP, SIGCONT after 3 s"}


def test_an_event_that_says_that_nothing_comes_is_no_sign_of_life() -> None:
    ear = Ear()
    ear.note(ev.Waiting("asr", 1500, 5))
    ear.note(ev.SpeechStopped("i", 0, 7))
    assert ear.signs == [7]


def test_events_in_words() -> None:
    assert in_words(ev.Closed(1012, "stopped", 0)) == "close: 1012 stopped"
    failed = ev.ReplyDone("r", "failed", None, "Sorry.", "hung", {}, 0)
    assert in_words(failed) == "failed: 'Sorry.' (hung)"
    assert in_words(ev.SpeechStopped("i", 0, 0)) is None


def test_verdicts() -> None:
    good = Observation(["answer: 'Yes.'"], 1.9, 3.0, history_kept=True)
    assert row_of("x", good, keeps_call=True).verdict == PASSES
    for bad in (
        replace(good, longest_silence_s=2.1),
        replace(good, next_answer_s=None),
        replace(good, num_calls=2),
        replace(good, history_kept=False),
    ):
        assert row_of("x", bad, keeps_call=True).verdict == FAILS
    lost = row_of("x", replace(good, num_calls=2), keeps_call=False, num_lost=0)
    assert (lost.verdict, lost.lost) == (PASSES, ["the call"])


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (2, 2, []),
        (2, 5, ["3 turn(s) not in the store"]),
        (5, 1, ["1 turn(s) not in the store"]),  # of a process that was started anew
        (None, 1, ["the store was not looked at"]),
        (1, None, ["the store was not looked at"]),
    ],
)
def test_losses_of_the_store(before: int | None, after: int | None, lost: list[str]) -> None:
    good = Observation(["answer: 'Yes.'"], 1.9, 3.0, history_kept=True)
    num_lost = command._difference(before, after)
    assert row_of("x", good, keeps_call=True, num_lost=num_lost).lost == lost


def test_verdicts_of_starts() -> None:
    said = "halfsec: model m is damaged"
    refused = DamagedStart("m", False, False, False, 3.0, said, True, True)
    assert row_of_start(refused).verdict == PASSES
    assert row_of_start(replace(refused, starts=True, is_repaired=True)).verdict == PASSES
    for bad in (
        replace(refused, starts=True),
        replace(refused, names_model=False),
        replace(refused, starts_mended=False),
    ):
        assert row_of_start(bad).verdict == FAILS


def test_what_a_case_looks_at_is_in_its_row() -> None:
    good = Observation(["answer: 'Yes.'"], 1.9, 3.0, next_answer="Yes.", history_kept=True)
    looked = Aftermath(["the disk was frozen 3 times"], ["the trace"])
    row = row_of("x", good, keeps_call=True, num_lost=0, aftermath=looked)
    assert (row.verdict, row.lost, row.next_answer) == (PASSES, ["the trace"], "Yes.")
    assert row.heard == ["answer: 'Yes.'", "the disk was frozen 3 times"]
    bad = row_of("x", good, keeps_call=True, aftermath=Aftermath(why=["not delivered"]))
    assert (bad.verdict, bad.why) == (FAILS, ["not delivered"])


def test_the_table_is_markdown_of_seven_columns() -> None:
    memory = MemoryFigures(700.4, 900.6, 850.0, 60.0)
    rows = [
        FaultRow("a|b", NOT_RUN, ["no root"]),
        FaultRow("c", PASSES, [], ["x\ny"], 0.5, 1.0, memory_mb=memory),
        FaultRow("d", PASSES, memory_mb=replace(memory, settled=None, returned=701.0)),
    ]
    lines = markdown(rows).splitlines()
    assert len(lines) == 5
    assert {line.count("|") for line in lines} == {8}
    assert lines[2] == "| a/b | - | - | - | - | - | not run: no root |"
    assert "| 700 / 901 / 850 (60 s) |" in lines[3]
    assert "| 700 / 901 / - (60 s); hung call back: 701 |" in lines[4]
    assert rows[1].as_json()["memory_mb"]["after"] == 900.6


async def test_memory_is_read_when_the_fault_strikes_when_it_is_over_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = command.FaultyServer(tmp_path, [])
    server._served = OwnServer("ws://127.0.0.1:1/v1/realtime", 4711, ServerFigures())
    readings = iter([10.0, 20.0, 30.0, 40.0])

    def resident_mb(pid: int) -> float:
        assert pid == 4711
        return next(readings)

    monkeypatch.setattr(command, "resident_mb", resident_mb)
    monkeypatch.setattr(command, "RETURNED_S", 0.001)
    look = command._MemoryLook(server)
    look.note_before()
    look.note_after()
    look.note_after()  # the first time counts
    hung = FaultCase("x", nothing, hangs_s=0.001)
    assert await look.settled(hung, 0.001) == MemoryFigures(10.0, 20.0, 30.0, 0.001, 40.0)
    again = command._MemoryLook(command.FaultyServer(tmp_path, []))  # the process is gone
    again.note_before()
    again.note_after()
    assert await again.settled(hung, 0) == MemoryFigures()
    hangs = {case.name for case in CASES if case.hangs_s}
    assert hangs == {f"{stage}: hang" for stage in ("vad", "asr", "turn", "llm", "tts")}


def test_a_final_is_decoded_while_a_fault_of_the_recognizer_is_armed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else four finals in five take the words of an early pass over, and the fault hits nothing."""
    monkeypatch.setattr(asr.FinalReuse, "known", asr.FinalReuse.known)
    monkeypatch.setattr(faulty_server, "HANG_S", 0.0)

    class Recognizer:
        """Counts its passes; a fault is put around it as around Whisper's."""

        def __init__(self) -> None:
            self.finals: list[bool] = []

        def transcribe(self, pcm: asr.Pcm, *, fallback: bool = True) -> asr.Hypothesis:
            self.finals.append(fallback)
            return asr.Hypothesis("yes")

    faults = Faults()
    point = replace(faulty_server.POINTS["asr"], kind=Recognizer)
    faults._decode_finals()
    faults._wrap("asr", point)
    recognizer, reuse = Recognizer(), asr.FinalReuse()
    pcm = np.zeros(1600, np.float32)
    early = asr.DecodeJob("early", 1, 1, 0, pcm, last_voiced_sample=1200)
    final = replace(early, kind="final")
    assert reuse.recognize(recognizer, early).text == "yes"
    assert reuse.recognize(recognizer, final).taken_over
    faults.handle({"stage": "asr", "how": "raise"})
    with pytest.raises(InjectedError):
        reuse.recognize(recognizer, final)
    assert faults.handle({})["hits"]["asr"] == 1
    assert reuse.recognize(recognizer, final).taken_over  # the fault is over
    assert recognizer.finals == [False]


async def test_what_cannot_be_run_here_is_not_passed(tmp_path: Path) -> None:
    case = FaultCase("x", nothing, not_here=lambda: "needs root")
    row = await command.run_case(case, command.FaultyServer(tmp_path, []), [])
    assert (row.verdict, row.why) == (NOT_RUN, ["needs root"])


async def test_a_case_has_its_surroundings_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is stopped before and after, and started with settings and home of the case."""
    events: list[str] = []
    launched: list[dict[str, str]] = []
    server = command.FaultyServer(tmp_path, [])

    @asynccontextmanager
    async def around(folder: Path) -> AsyncIterator[Surroundings]:
        surroundings = Surroundings(folder)
        surroundings.settings = "[agent]\n"
        surroundings.environment = {"SECRET": "x"}
        surroundings.home = folder / "home"
        events.append("made")
        yield surroundings
        events.append("gone")

    async def stop() -> None:
        events.append("stop")

    async def attempt(*_: object) -> FaultRow:
        assert server.around is not None
        launched.append(server.around.launched())
        assert server.home == server.around.folder / "home"
        events.append("attempt")
        return FaultRow("x", PASSES)

    monkeypatch.setattr(server, "stop", stop)
    monkeypatch.setattr(command, "_attempt", attempt)
    row = await command.run_case(FaultCase("x", nothing, around=around), server, [])
    assert row.verdict == PASSES
    assert events == ["stop", "made", "attempt", "stop", "gone"]
    assert [(sorted(each), each["SECRET"]) for each in launched] == [
        (["HALFSEC_CONFIG", "SECRET"], "x")
    ]
    assert server.home == tmp_path / "home"


async def test_a_server_that_does_not_come_back_fails_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = command.FaultyServer(tmp_path, [])

    async def gone() -> OwnServer:
        raise BenchError("The server did not start")

    monkeypatch.setattr(server, "running", gone)
    with pytest.raises(BenchError):
        await command.run_case(FaultCase("x", nothing), server, [], settle_s=0)
    server.was_ready = True
    row = await command.run_case(FaultCase("x", nothing), server, [], settle_s=0)
    assert (row.verdict, row.heard) == (FAILS, ["The server did not start"])

    async def there() -> OwnServer:
        return OwnServer("ws://127.0.0.1:1/v1/realtime", 0, ServerFigures())

    class Interrupted:
        """A witness during whose call the server does not come back."""

        def __init__(self, *_: object, **__: object) -> None:
            pass

        async def run(self) -> Observation:
            async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
                inner.create_task(gone())
            raise AssertionError(outer)

    monkeypatch.setattr(server, "running", there)
    monkeypatch.setattr(command, "Witness", Interrupted)
    row = await command.run_case(FaultCase("x", nothing), server, [], settle_s=0)
    assert (row.verdict, row.heard) == (FAILS, ["The server did not start"])


def test_the_plan_names_each_fault_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))  # without models
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert command.main(["--list"]) == 0
    assert capsys.readouterr().out.splitlines() == names


def test_an_unknown_fault_is_said() -> None:
    with pytest.raises(BenchError, match="--list"):
        command.main(["--only", "no such thing"])


def test_a_model_is_damaged_in_a_copy_only(tmp_path: Path) -> None:
    for name in ("a", "b"):
        folder = tmp_path / "source" / "models" / name
        folder.mkdir(parents=True)
        (folder / "model.bin").write_bytes(bytes(1000))
    copy = home_with_copy(tmp_path / "source", tmp_path / "home", "a")
    assert copy is not None
    damage(copy)
    found = model_files(tmp_path / "home" / "models")
    assert len(copy.read_bytes()) == 1000
    assert copy.read_bytes().count(0) == 1000 - 64
    assert found["b"].read_bytes() == bytes(1000)
    assert (tmp_path / "source" / "models" / "a" / "model.bin").read_bytes() == bytes(1000)


def test_the_default_voice_is_damaged_in_a_copy_of_its_package(tmp_path: Path) -> None:
    """Another process imports the copy, and the installed package stays whole."""
    package = voice_package()
    assert package is not None
    assert damageable(tmp_path) == [VOICE]
    copy, environment = package_with_copy(package, tmp_path / "site")
    installed = package / copy.relative_to(tmp_path / "site" / VOICE)
    whole = installed.read_bytes()
    damage(copy)
    assert installed.read_bytes() == whole != copy.read_bytes()
    used = subprocess.run(
        [sys.executable, "-c", "import hibari.voices as v; print(v.voice_path(v.DEFAULT))"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
    )
    assert Path(used.stdout.strip()) == copy


def test_a_server_that_does_not_start_has_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert command.last_line(log) == "(nothing)"
    log.write_text("one\nwhy\n")
    assert command.last_line(log) == "why"


async def test_the_control_socket_answers_and_tells_of_errors(
    faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "control"
    monkeypatch.setenv(control_socket.SOCKET_VARIABLE, str(path))
    control_socket.listen(faults.handle)
    assert await asyncio.to_thread(request, path) == {"hits": {"model": 0}}
    with pytest.raises(RuntimeError, match="no such fault"):
        await asyncio.to_thread(request, path, stage="model", how="sulk")


async def test_hits_are_counted_for_stages_only(tmp_path: Path) -> None:
    server = command.FaultyServer(tmp_path, [])
    assert await command._num_hits(FaultCase("x", nothing), server) is None
    assert await command._num_hits(FaultCase("x", nothing, stage="asr"), server) is None  # gone


def test_an_unknown_model_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HALFSEC_HOME", str(tmp_path))
    with pytest.raises(BenchError, match="no model 'nothing'; there are: hibari"):
        command.main(["--damaged-model", "nothing"])
