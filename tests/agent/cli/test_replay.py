"""A recorded call gives the same commands again; a changed one names the first difference."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.cli.replay import CommandDifference, ReplayError, ReplayResult, main, replay
from agent.observability.turn_recorder import TurnRecorder
from agent.session.api.client_events import CreateResponse
from agent.session.api.server_events import ReplyAudio, ReplyEnded
from agent.session.api.settings import ResponseOptions
from agent.turn_taking.events import ReplyStands, RulesChanged
from agent.turn_taking.machine import TurnTaking
from latency_budget.account.marks import MarkName
from latency_budget.account.turn import SessionId
from latency_budget.reporting.trace import Trace, TraceWriter, read_trace
from tests.scenarios.calls import RECORDED
from tests.scenarios.plausible import RULES, Session
from tests.scenarios.timeline import NS_PER_MS
from tests.scenarios.traces import path_of, trace_of
from tests.support.session.session_call import call_with

NORMAL_TRACE = trace_of("normal_turn", RECORDED["normal_turn"])
LINES = NORMAL_TRACE.splitlines(keepends=True)
COMMAND_LINES = [number for number, line in enumerate(LINES) if '"kind":"command"' in line]


def read(text: str) -> Trace:
    return read_trace(text.splitlines(keepends=True))


def recorded_again(session: Session, name: str) -> TraceWriter:
    """What a session with this log would have written."""
    writer = TraceWriter(SessionId(name), started_unix_ns=0, config_fingerprint="by hand")
    log = TurnRecorder(SessionId(name), writer, lambda turn: None)
    machine = TurnTaking(session.rules)
    log.event(RulesChanged(session.rules), 0, machine.turn)
    for event, now_ns, commands in session.log:
        if event is None:
            log.timer(now_ns, machine.turn)
            machine.on_timer(now_ns)
        else:
            log.event(event, now_ns, machine.turn)
            machine.apply(event, now_ns)
        for command in commands:
            log.command(command, now_ns, machine.turn)
    return writer


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_scenario_is_identical(name: str) -> None:
    text = path_of(name).read_text(encoding="utf-8")
    trace = read(text)
    result = replay(trace)
    assert result.difference is None
    assert result.num_events == len(list(trace.of_kind("event")))
    assert result.num_commands == len(list(trace.of_kind("command"))) > 0
    assert text == trace_of(name, RECORDED[name]), "run `python -m tests.scenarios.traces`"


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_scenario_gives_the_same_bytes(name: str) -> None:
    story = RECORDED[name]
    session = Session(story.rules)
    for step in story.steps:
        session.now_ns = step.at_ms * NS_PER_MS
        if not isinstance(step.event, ReplyStands):  # the session says that of itself
            session.feed(step.event)
    written = "".join(recorded_again(session, name).lines())
    assert written.encode() == path_of(name).read_bytes()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_any_session_replays(data: st.DataObject) -> None:
    session = Session(data.draw(RULES))
    for _ in range(data.draw(st.integers(0, 40))):
        moves = session.moves()
        moves[data.draw(st.sampled_from(sorted(moves)))](data.draw)
    num_commands = sum(len(commands) for _, _, commands in session.log)
    trace = read("".join(recorded_again(session, "any").lines()))
    assert replay(trace) == ReplayResult(len(session.log) + 1, num_commands, None)


async def test_a_session_replays() -> None:
    async with call_with("One two three four five six seven eight nine ten.", "Yes.") as call:
        call.ears.say("Count.")
        await call.until(ReplyAudio, 10)  # beyond what may be taken back
        await call.session.handle(CreateResponse(ResponseOptions()))
        call.ears.say("Stop.")
        await call.until(ReplyEnded, 2)
    trace = read("".join(call.trace.lines()))
    commands = [record.type for record in trace.of_kind("command")]
    assert {"StartReply", "ReleaseReply", "CutReply", "RefuseRequest"} <= set(commands)
    assert replay(trace).difference is None


def test_marks_are_passed_over() -> None:
    mark = {"at_ns": 5, "kind": "mark", "turn": 1, "type": MarkName.RELEASED.value}
    text = "".join([LINES[0], json.dumps(mark) + "\n", *LINES[1:]])
    assert replay(read(text)).difference is None


@pytest.mark.parametrize("number", COMMAND_LINES)
def test_missing_command_is_found(number: int) -> None:
    difference = replay(read("".join(LINES[:number] + LINES[number + 1 :]))).difference
    assert difference is not None
    assert difference.index == COMMAND_LINES.index(number)
    assert f'"type":"{difference.got.partition("(")[0]}"' in LINES[number]
    assert difference.at_ms == json.loads(LINES[number])["at_ns"] / 1e6


@pytest.mark.parametrize("number", COMMAND_LINES)
def test_command_too_many_is_found(number: int) -> None:
    difference = replay(read("".join([*LINES[: number + 1], *LINES[number:]]))).difference
    assert difference is not None
    assert f'"type":"{difference.expected.partition("(")[0]}"' in LINES[number]


def test_changed_command_is_printed_in_full() -> None:
    text = NORMAL_TRACE.replace(
        '"text":"What time is it?","by_client"', '"text":"Who?","by_client"'
    )
    assert replay(read(text)).difference == CommandDifference(
        3,
        1250.0,
        "CommitUtterance(utterance=1, text='Who?', by_client=False)",
        "CommitUtterance(utterance=1, text='What time is it?', by_client=False)",
    )


def test_changed_time_is_a_difference_where_it_matters() -> None:
    text = path_of("stage_failure").read_text(encoding="utf-8")
    early = text.replace('"at_ns":30900000000,"kind":"event"', '"at_ns":30899999999,"kind":"event"')
    difference = replay(read(early)).difference
    assert difference is not None
    assert (difference.index, difference.got) == (2, "nothing")


def test_event_refused_by_the_machine_is_reported() -> None:
    twice = next(line for line in LINES if "SpeechStarted" in line).replace(
        '"utterance":1', '"utterance":2'
    )
    difference = replay(read("".join([*LINES[:4], twice]))).difference
    assert difference is not None
    assert difference.got == "SpeechStarted while the caller is speaking"


def test_last_commands_may_not_be_missing() -> None:
    difference = replay(read("".join(LINES[: COMMAND_LINES[-1]]))).difference
    assert difference == CommandDifference(5, 1300.0, "nothing", "ReleaseReply(turn=1)")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: LINES[0], "holds no events: there is nothing to replay"),
        (lambda text: text.replace('"dropped":0', '"dropped":7'), "the first 7 records"),
        (lambda text: "".join([LINES[0], *LINES[2:]]), "line 2: SpeechStarted begins the trace"),
        (lambda text: "".join([LINES[0], *LINES[3:]]), "line 2: AnnounceSpeech begins the trace"),
        (lambda text: text.replace('"enabled":true', '"enabled":1'), "line 2: TurnRules.enabled"),
        (lambda text: text.replace("SilenceGrew", "SilenceWent"), "line 7: unknown event type"),
        (lambda text: text.replace("StartReply", "Reply"), "line 12: unknown command type 'Reply'"),
        (lambda text: text.replace('"at_sample"', '"at"'), "line 3: SpeechStarted lacks its field"),
    ],
)  # fmt: skip
def test_trace_that_cannot_be_replayed(change: Callable[[str], str], message: str) -> None:
    with pytest.raises(ReplayError, match=message):
        replay(read(change(NORMAL_TRACE)))


def test_command_says_identical(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(path_of("normal_turn"))]) == 0
    assert capsys.readouterr() == ("9 events, 6 commands, identical\n", "")


def test_command_shows_the_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "changed.jsonl"
    path.write_text(
        NORMAL_TRACE.replace('"utterance":1,"revision":1}', '"utterance":1,"revision":2}', 1)
    )
    assert main([str(path)]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "3 events, 1 commands, then different: command 1 at 1000.000 ms",
        "  expected Transcribe(utterance=1, revision=2)",
        "  got      Transcribe(utterance=1, revision=1)",
    ]
    assert not err


@pytest.mark.parametrize(
    "content",
    [b"", b"RIFF\x00\xff\xfe", b"{}\n", b"hello\n", LINES[0].encode(), b"[1]\n", b"\x00" * 99],
)
def test_bad_file_is_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    assert main([str(path)]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"{path}: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("path", ["/no/such/trace.jsonl", "/"])
def test_no_file_is_one_line(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([path]) == 2
    assert capsys.readouterr().err.count("\n") == 1
