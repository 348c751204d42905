"""Call plan of a telephone call: how it begins and is conducted, and why it ended."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from agent.calls.recording import ConsentedRecording
from agent.calls.service import AdmittedCall
from agent.config.telephony import OnMachine, OnMenu, TelephonySettings
from agent.telephony.carriers.media_stream import StreamStarted
from agent.telephony.media.amd import AnsweringMachineDetector
from agent.telephony.media.dtmf_redaction import RedactedRecording
from agent.telephony.outbound.transfer import TRANSFER_OUTCOME, UNTIL, TransferFunction

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
    "refused",
    "failed",
]
"""Cause of a call's end. "lost": the connection broke, or the carrier stopped sending or reading;
"bad_stream": the carrier sent an invalid frame; "machine": an answering machine answered our call;
"stopped": this server was stopped; "refused": all calls of its key are in progress, on the servers
of the fleet together; "failed": a fault of this server."""

OUTBOUND: Final = "outbound"
"""Prefix of the parameter `direction` in calls that this server placed."""


@dataclass(frozen=True, slots=True)
class CallPlan:
    """Plan of one call."""

    agent: str = ""
    """Agent that answers."""
    transfers: Mapping[str, str] = field(default_factory=dict)
    """Numbers to which the agent may transfer the call, by the names that the model uses."""
    transfer: TransferFunction | None = None
    """Transfers a call; None: the carrier can't."""
    limit_s: float | None = None
    """Longest call, in s; None: no notice before the end."""
    limit_notice: str = ""
    """Spoken some time before the end."""
    record: Callable[[], None] | None = None
    """Begins the recording, after the announcement. None: there is nothing to announce."""
    key_pressed: Callable[[], None] | None = None
    """Reports keys to the recording, which removes their tones. None: there is no recording."""
    announcement: str = ""
    """Announcement of the recording. Empty: a tone."""
    greeting: str = ""
    """Spoken after the announcement."""
    amd: AnsweringMachineDetector | None = None
    """None: answering machines are not detected."""
    on_machine: OnMachine = "talk"
    machine_message: str = ""
    """Message for answering machines."""
    on_menu: OnMenu = "as_machine"
    ahead_s: float = 60.0
    """Largest lead of the caller's audio over real time, in s; audio beyond it is dropped."""


PLAIN: Final = CallPlan()


def planned(
    settings: TelephonySettings,
    held: AdmittedCall,
    started: StreamStarted,
    transfer: TransferFunction | None,
    now_ns: int,
) -> tuple[AdmittedCall, CallPlan]:
    """Make the call's plan, and adapt the call to it. `transfer`: of its carrier."""
    if TRANSFER_OUTCOME in started.parameters:
        held = _returned(settings, held, started)
    plan = CallPlan(
        held.call.agent,
        settings.transfers,
        transfer,
        held.rules.limit_s,
        settings.limit_notice,
        amd=machine_detector(settings, started, now_ns),
        on_machine=settings.on_machine,
        machine_message=settings.machine_message,
        on_menu=settings.on_menu,
    )
    if held.call.recording is not None:
        recording = RedactedRecording(held.recording)
        held = replace(held, recording=recording)
        plan = replace(plan, key_pressed=recording.key_pressed)
    greeting = held.start.profile.greeting
    is_known = plan.amd is not None and plan.amd.is_machine
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


def machine_detector(
    settings: TelephonySettings, started: StreamStarted, now_ns: int
) -> AnsweringMachineDetector | None:
    """Answering machine detector of a call. None where the settings treat machines as people, for
    inbound calls, and after a transfer: there a person is on the line."""
    answered_by = started.parameters.get("answered_by", "")
    is_outbound = started.parameters.get("direction", "").startswith(OUTBOUND)
    detects_menus = settings.on_menu != "as_machine"
    ignores_machines = settings.on_machine == "talk" and not detects_menus
    if (
        ignores_machines
        or TRANSFER_OUTCOME in started.parameters
        or not (answered_by or is_outbound)
    ):
        return None
    return AnsweringMachineDetector(answered_by, now_ns, detects_menus=detects_menus)


def _returned(
    settings: TelephonySettings, held: AdmittedCall, started: StreamStarted
) -> AdmittedCall:
    """A call that returns from an unanswered transfer: the caller hears that, and keeps the rest of
    the time limit."""
    if settings.transfer_unanswered:
        held = _with_greeting(held, settings.transfer_unanswered)
    until = started.parameters.get(UNTIL, "")
    if not (until.isascii() and until.isdigit() and len(until) < 16):
        return held
    remaining_s = int(until) - held.call.began.unix_ns // 10**9
    rules = replace(held.rules, limit_s=max(1, min(held.rules.limit_s, remaining_s)))
    return replace(held, rules=rules)


def _with_greeting(held: AdmittedCall, greeting: str) -> AdmittedCall:
    """The call with another greeting; empty: none, or one that the plan speaks."""
    start = held.start
    return replace(held, start=replace(start, profile=replace(start.profile, greeting=greeting)))
