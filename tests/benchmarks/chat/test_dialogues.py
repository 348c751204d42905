"""The project's dialogues can be read, and files that can't are named."""

from collections import Counter
from pathlib import Path

import pytest

from agent.errors import BenchError
from benchmarks.chat.dialogue import FOLDER, read_dialogues
from benchmarks.chat.domains import DOMAINS, DomainError
from benchmarks.chat.judge import holds

DIALOGUES = read_dialogues()
TUNING = read_dialogues([FOLDER.parent / "tuning"])


def own(turns: str) -> str:
    """A file with one dialogue."""
    return f"[[dialogue]]\nid='a'\ncategory='b'\nturn=[{turns}]"


def test_there_are_enough_of_every_kind() -> None:
    counts = Counter(each.category for each in DIALOGUES)
    assert sum(counts.values()) >= 120
    assert counts["tool calls"] >= 60
    assert min(counts.values()) >= 4


def test_every_turn_that_is_judged_can_fail() -> None:
    for dialogue in DIALOGUES:
        assert dialogue.state is not None or any(
            turn.expect or turn.reject or turn.calls or turn.no_call or turn.max_words
            for turn in dialogue.turns
        ), dialogue.id


def test_no_judged_line_is_among_those_for_tuning() -> None:
    judged, tuned = (
        {turn.caller for each in dialogues for turn in each.turns if each.domain is not None}
        for dialogues in (DIALOGUES, TUNING)
    )
    assert not judged & tuned


def test_expected_calls_are_of_the_domain() -> None:
    for dialogue in (*DIALOGUES, *TUNING):
        for turn in dialogue.turns:
            for call in turn.calls:
                assert dialogue.domain is not None
                (tool,) = (each for each in dialogue.domain.tools if each.name == call.name)
                assert set(call.arguments) <= set(tool.parameters), dialogue.id


def test_no_final_state_holds_before_the_first_turn() -> None:
    """A task that is done by doing nothing proves nothing, unless its replies are judged."""
    for dialogue in DIALOGUES:
        if dialogue.state is not None and dialogue.domain is not None:
            is_done = holds(dialogue.state, dialogue.domain.fresh_state())
            assert not is_done or any(turn.expect for turn in dialogue.turns), dialogue.id


def test_callers_hesitate_interrupt_and_correct_themselves() -> None:
    spoken = [each for each in DIALOGUES if each.needs_voice]
    assert len(spoken) >= 20
    counts = Counter(each.category for each in spoken)
    assert set(counts) == {"hesitant callers", "interruptions", "self-corrections"}
    assert min(counts.values()) >= 6
    assert not any(each.needs_voice for each in DIALOGUES if each.category not in counts)
    for dialogue in spoken:
        for turn in dialogue.turns:
            assert "|" not in turn.caller
            assert all(300 <= pause.length_ms <= 900 for pause in turn.pauses), dialogue.id


def test_pauses_stand_before_the_words_that_follow_them(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(own("{caller='I want | um, |  two.', pause_ms=[300, 500]}"))
    (dialogue,) = read_dialogues([file])
    (turn,) = dialogue.turns
    assert turn.caller == "I want um, two."
    assert [(turn.caller[each.at_char :], each.length_ms) for each in turn.pauses] == [
        ("um, two.", 300),
        ("two.", 500),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x", "no dialogues"),
        ("[[other]]", "no dialogues"),
        ("[[dialogue]]\nid = 'a'", "category|turn"),
        ("[[dialogue]]\nid='a'\ncategory='b'\nturn=[{caller='c', wants=1}]", "unknown: wants"),
        ("[[dialogue]]\nid='a'\ncategory='b'\nturn=[{caller='c', expect=['(']}]", "dialogue 'a'"),
        ("[[dialogue]]\nid='a'\ncategory='b'\nturn=[{caller='c', expect='x'}]", "are lists"),
        ("[[dialogue]]\nid='a'\ncategory='b'\ndomain='moon'\nturn=[]", "moon"),
        ("[[dialogue]]\nid='a'\ncategory='b'\nturn=[]\n" * 2, "same id"),
        (own("{caller=1}"), "caller must be a text"),
        (own("{caller='c', pause_ms=[300]}"), "pause_ms must be a list .* which has 0"),
        (own("{caller='c | d'}"), "pause_ms must be a list .* which has 1"),
        (own("{caller='c | d', pause_ms=300}"), "pause_ms must be a list"),
        (own("{caller='c | d', pause_ms=[0]}"), "pause_ms must be whole milliseconds from 1"),
        (own("{caller='c | d', pause_ms=[6000]}"), "pause_ms must be .* to 5000, not 6000"),
        (own("{caller='c | d', pause_ms=[0.5]}"), "pause_ms must be whole milliseconds"),
        (own("{caller='c |', pause_ms=[300]}"), "caller: .* words before and after"),
        (own("{caller='c | , | d', pause_ms=[300, 300]}"), "caller: .* words before and after"),
        (own("{caller='c', interrupts_after_ms=500}"), "interrupts_after_ms: there is no answer"),
        (own("{caller='c'}, {caller='d', interrupts_after_ms=-1}"), "interrupts_after_ms must be"),
        (own("{caller='c'}, {caller='d', interrupts_after_ms=true}"), "interrupts_after_ms must"),
        (
            own("{caller='c', expect=['x']}, {caller='d', interrupts_after_ms=500}"),
            "expect can't be asked",
        ),
    ],
)
def test_files_that_can_not_be_read(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "own.toml"
    file.write_text(text)
    with pytest.raises(BenchError, match=problem):
        read_dialogues([file])


def test_a_domain_refuses_what_is_wrong_and_keeps_its_state() -> None:
    bank = DOMAINS["bank"]
    state = bank.fresh_state()
    for name, arguments in (
        ("transfer_money", {"amount": 9999, "source": "checking", "target": "savings"}),
        ("transfer_money", {"amount": 1}),
        ("block_card", {"last_digits": "0000"}),
        ("fly", {}),
    ):
        with pytest.raises(DomainError):
            bank.call(state, name, arguments)
    assert state == bank.fresh_state()
