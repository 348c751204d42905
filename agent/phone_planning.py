"""How a telephone call is to begin and to be conducted, from the settings and its first message."""

from dataclasses import replace
from typing import Final

from .answering_machine import MachineWatch
from .call_desk import HeldCall
from .call_recording import ConsentedRecording
from .phone_plan import CallPlan, Move
from .telephony_settings import TelephonySettings
from .wire.telephony.line import StreamStarted

OUTBOUND: Final = "outbound"
"""Begins the parameter `direction` of calls that we placed."""


def planned(
    settings: TelephonySettings,
    held: HeldCall,
    started: StreamStarted,
    move: Move | None,
    now_ns: int,
) -> tuple[HeldCall, CallPlan]:
    """The call as it is to begin. `move`: how its carrier transfers calls."""
    plan = CallPlan(
        settings.transfers,
        move,
        settings.limit_s,
        settings.limit_notice,
        watch=machine_watch(settings, started, now_ns),
        machine_message=settings.machine_message if settings.on_machine == "message" else "",
    )
    greeting = held.start.profile.greeting
    is_machine = plan.watch is not None and plan.watch.is_machine
    if is_machine:
        held = _without_greeting(held)
    if settings.record == "announced" and held.call.recording is not None:
        recording = ConsentedRecording(held.recording)
        held = _without_greeting(replace(held, recording=recording))
        if not is_machine:
            plan = replace(
                plan,
                record=recording.allow,
                announcement=settings.announcement,
                greeting=greeting,
            )
    return held, plan


def machine_watch(
    settings: TelephonySettings, started: StreamStarted, now_ns: int
) -> MachineWatch | None:
    """None where machines are talked to, or nobody can have one: who calls us is a person."""
    answered_by = started.parameters.get("answered_by", "")
    is_ours = started.parameters.get("direction", "").startswith(OUTBOUND)
    if settings.on_machine == "talk" or not (answered_by or is_ours):
        return None
    return MachineWatch(answered_by, now_ns)


def _without_greeting(held: HeldCall) -> HeldCall:
    """Somebody else says it."""
    start = held.start
    return replace(held, start=replace(start, profile=replace(start.profile, greeting="")))
