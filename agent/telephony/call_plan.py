"""Call plan of a telephone call: how it begins and is conducted, and why it ended."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from agent.calls.recording import ConsentedRecording
from agent.calls.service import AdmittedCall
from agent.config.telephony import OnMachine, OnMenu, TelephonySettings
from agent.telephony.carriers.media_stream import StreamStarted
from agent.telephony.media.amd import AnsweringMachineDetector
from agent.telephony.media.dtmf_redaction import QuietKeys
from agent.telephony.outbound.transfer import UNTIL, WENT, Move

Cause = Literal[
    "caller_hung_up",
    "agent_hung_up",
    "transferred",
    "time_limit",
    "silent",
    "machine",
    "lost",
    "bad_stream",
    "revoked",
    "stopped",
    "failed",
]
"""Of a call's end. "lost": the connection broke, or the carrier sent nothing any more, or did not
read; "bad_stream": it sent what can't be served; "machine": one had answered our call; "stopped":
this server was; "failed": something of ours."""

OUTBOUND: Final = "outbound"
"""Begins the parameter `direction` of calls that we placed."""


@dataclass(frozen=True, slots=True)
class CallPlan:
    agent: str = ""
    """Who answers."""
    transfers: Mapping[str, str] = field(default_factory=dict)
    """Numbers to which the agent may transfer the call, by the names that it knows them by."""
    move: Move | None = None
    """None: this carrier has no way to transfer a call."""
    limit_s: float | None = None
    """The longest call; None: whoever holds it knows."""
    limit_notice: str = ""
    """Said some time before that."""
    record: Callable[[], None] | None = None
    """Begins to record the call, once the caller knows of it. None: there is nothing to announce.
    """
    key_pressed: Callable[[], None] | None = None
    """Told to the recording, if there is any: it has no tones of keys."""
    announcement: str = ""
    """How he gets to know of it. Empty: by a tone."""
    greeting: str = ""
    """Said behind that."""
    watch: AnsweringMachineDetector | None = None
    """Whether a machine has answered; None: nobody wants to know."""
    on_machine: OnMachine = "talk"
    machine_message: str = ""
    """Left there, where that is wanted."""
    on_menu: OnMenu = "as_machine"
    ahead_s: float = 60.0
    """By how much more of the caller's sound may come than time has passed; what is more is
    dropped."""


PLAIN: Final = CallPlan()


def planned(
    settings: TelephonySettings,
    held: AdmittedCall,
    started: StreamStarted,
    move: Move | None,
    now_ns: int,
) -> tuple[AdmittedCall, CallPlan]:
    """The call as it is to begin. `move`: how its carrier transfers calls."""
    if WENT in started.parameters:
        held = _come_back(settings, held, started)
    plan = CallPlan(
        held.call.agent,
        settings.transfers,
        move,
        held.rules.limit_s,
        settings.limit_notice,
        watch=machine_watch(settings, started, now_ns),
        on_machine=settings.on_machine,
        machine_message=settings.machine_message,
        on_menu=settings.on_menu,
    )
    if held.call.recording is not None:
        recording = QuietKeys(held.recording)
        held = replace(held, recording=recording)
        plan = replace(plan, key_pressed=recording.key_pressed)
    greeting = held.start.profile.greeting
    is_known = plan.watch is not None and plan.watch.is_machine
    is_machine = is_known and settings.on_machine != "talk"
    if is_machine:
        held = _with_greeting(held, "")
    if settings.record == "announced" and held.call.recording is not None:
        consented = ConsentedRecording(held.recording)
        held = _with_greeting(replace(held, recording=consented), "")
        if not is_machine:
            plan = replace(
                plan,
                record=consented.allow,
                announcement=settings.announcement,
                greeting=greeting,
            )
    return held, plan


def machine_watch(
    settings: TelephonySettings, started: StreamStarted, now_ns: int
) -> AnsweringMachineDetector | None:
    """None where machines are talked to, or nobody can have one: who calls us is a person, and so
    is whoever has been talked with before."""
    answered_by = started.parameters.get("answered_by", "")
    is_ours = started.parameters.get("direction", "").startswith(OUTBOUND)
    heeds_menus = settings.on_menu != "as_machine"
    talks = settings.on_machine == "talk" and not heeds_menus
    if talks or WENT in started.parameters or not (answered_by or is_ours):
        return None
    return AnsweringMachineDetector(answered_by, now_ns, heeds_menus=heeds_menus)


def _come_back(
    settings: TelephonySettings, held: AdmittedCall, started: StreamStarted
) -> AdmittedCall:
    """A call that was transferred to somebody who did not take it: the caller is told so, and has
    what was left of the longest call."""
    if settings.transfer_unanswered:
        held = _with_greeting(held, settings.transfer_unanswered)
    until = started.parameters.get(UNTIL, "")
    if not (until.isascii() and until.isdigit() and len(until) < 16):
        return held
    left_s = int(until) - held.call.began.unix_ns // 10**9
    rules = replace(held.rules, limit_s=max(1, min(held.rules.limit_s, left_s)))
    return replace(held, rules=rules)


def _with_greeting(held: AdmittedCall, greeting: str) -> AdmittedCall:
    """Empty: somebody else says it."""
    start = held.start
    return replace(held, start=replace(start, profile=replace(start.profile, greeting=greeting)))
