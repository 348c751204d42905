"""The recorded timelines as traces, as a session would have written them.

`python -m tests.scenarios.traces` writes the files beside this one.
"""

from pathlib import Path

from agent.observability.turn_recorder import TurnRecorder
from agent.turn_taking.commands import StartReply
from agent.turn_taking.events import RulesChanged
from latency_budget.account.turn import SessionId, TurnId
from latency_budget.reporting.trace import TraceWriter
from tests.scenarios.calls import RECORDED
from tests.scenarios.timeline import NS_PER_MS, Timeline

FOLDER = Path(__file__).parent


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.jsonl"


def trace_of(name: str, story: Timeline) -> str:
    """The story's events, and its commands as they should be (not as the machine gives them)."""
    writer = TraceWriter(SessionId(name), started_unix_ns=0, config_fingerprint="by hand")
    log = TurnRecorder(SessionId(name), writer, lambda turn: None)
    turn = TurnId(0)
    log.event(RulesChanged(story.rules), 0, turn)
    for step in story.steps:
        now_ns = step.at_ms * NS_PER_MS
        if step.event is None:
            log.timer(now_ns, turn)
        else:
            log.event(step.event, now_ns, turn)
        turn = max(
            (each.turn for each in step.commands if isinstance(each, StartReply)), default=turn
        )
        for command in step.commands:
            log.command(command, now_ns, turn)
    return "".join(writer.lines())


if __name__ == "__main__":
    for name, story in RECORDED.items():
        path_of(name).write_text(trace_of(name, story), encoding="utf-8")
