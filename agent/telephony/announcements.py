"""Announcements in a telephone call, without a model: recording, time limit, message to a machine.

They run as tasks beside the call, and end with it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, Protocol

from agent.session.api.client_events import CancelResponse, UpdateSession
from agent.session.api.settings import SemanticVad
from agent.session.session import Session
from agent.telephony.media.amd import AnsweringMachineDetector

from .call_plan import CallPlan, Cause
from .dtmf_input import PhoneKeys

NOTICE_S: Final = 30.0
"""Time before the end of a limited call at which its notice is spoken."""

NAVIGATE: Final = (
    "An automated menu has answered this call, no person. Hear all its choices, and press the keys "
    "of the one that serves your task with press_keys, without a word. Speak only where it asks "
    "for words. When a person answers, talk as usual."
)
"""Added to the model's instructions when a menu has answered."""

_log = logging.getLogger(__name__)


BEEP_S: Final = 45.0
"""Longest wait for the beep of a machine. Greetings take up to half a minute, and the beep may be
one that is not detected."""


class Speaker(Protocol):
    """Interface of the call that announcements need."""

    async def next_frame(self) -> None: ...

    def hang_up(self, cause: Cause) -> None: ...

    async def say_all(self, session: Session, text: str) -> bool: ...

    async def send_tone(self) -> None: ...


async def conduct(session: Session, speaker: Speaker, keys: PhoneKeys, plan: CallPlan) -> None:
    """Make all announcements of a call, each at its time."""
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(_open(session, speaker, keys, plan))
        group.create_task(_announce_limit(session, plan))
        if plan.amd is not None:
            group.create_task(_handle_machine(session, speaker, keys, plan, plan.amd, opening))


@asynccontextmanager
async def uninterrupted(session: Session, keys: PhoneKeys) -> AsyncIterator[None]:
    """Within this context, the caller's speech neither interrupts nor is answered; keys wait."""
    detection = session.settings.turn_detection
    with keys.held():
        if detection is None:  # only keys and requests end turns
            yield
            return
        passive = replace(detection, interrupt_response=False, create_response=False)
        await session.handle(UpdateSession(session.settings.changed(turn_detection=passive)))
        try:
            yield
        finally:
            settings = session.settings  # a menu may have changed them meanwhile
            if settings.turn_detection is not None:
                active = replace(
                    settings.turn_detection,
                    interrupt_response=detection.interrupt_response,
                    create_response=detection.create_response,
                )
                await session.handle(UpdateSession(settings.changed(turn_detection=active)))


async def _open(session: Session, speaker: Speaker, keys: PhoneKeys, plan: CallPlan) -> None:
    """Announce the recording, then begin it, then greet. Speech during the announcement is answered
    by the greeting."""
    if plan.record is not None:
        async with uninterrupted(session, keys):
            if plan.announcement:
                is_announced = await speaker.say_all(session, plan.announcement)
            else:
                await speaker.send_tone()
                is_announced = True
        if is_announced:
            plan.record()
        else:
            _log.warning("call %s is not recorded: its announcement was interrupted", session.id)
    if plan.greeting:
        session.say(plan.greeting)


async def _handle_machine(
    session: Session,
    speaker: Speaker,
    keys: PhoneKeys,
    plan: CallPlan,
    amd: AnsweringMachineDetector,
    opening: asyncio.Task[None],
) -> None:
    """Wait until a machine or a menu has answered; then act by the settings."""
    while not (is_menu := _is_menu(plan, amd)):
        if amd.is_machine and plan.on_machine != "talk":
            break
        await speaker.next_frame()
    if not is_menu:
        _log.info("call %s was answered by a machine", session.id)
        opening.cancel()
        await asyncio.wait({opening})
        if plan.on_machine == "message":
            is_menu = not await _leave_message(session, speaker, keys, plan, amd)
    if is_menu:
        _log.info("call %s was answered by a menu: %s", session.id, plan.on_menu)
        if plan.on_menu == "navigate":
            await _navigate(session)
        if plan.on_menu != "hang_up":
            return
    speaker.hang_up("machine")


def _is_menu(plan: CallPlan, amd: AnsweringMachineDetector) -> bool:
    """True for a menu that is not treated as a machine."""
    return amd.is_menu and plan.on_menu != "as_machine"


async def _leave_message(
    session: Session,
    speaker: Speaker,
    keys: PhoneKeys,
    plan: CallPlan,
    amd: AnsweringMachineDetector,
) -> bool:
    """Speak the message after the beep, uninterrupted. False: a menu has answered after all."""
    async with uninterrupted(session, keys):
        await session.handle(CancelResponse())  # refused where nothing is being said
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEEP_S):
                while not amd.is_greeting_over:
                    if _is_menu(plan, amd):
                        return False
                    await speaker.next_frame()
        await speaker.say_all(session, plan.machine_message)
    return True


async def _navigate(session: Session) -> None:
    """Inform the model of the menu, and wait longer for the end of a turn: menus pause between
    their choices, and speech in a pause misses the next choice."""
    settings = session.settings
    instructions = f"{settings.instructions}\n\n{NAVIGATE}".strip()
    detection = settings.turn_detection
    if isinstance(detection, SemanticVad):
        detection = replace(detection, eagerness="low")
    changed = settings.changed(instructions=instructions, turn_detection=detection)
    await session.handle(UpdateSession(changed))


async def _announce_limit(session: Session, plan: CallPlan) -> None:
    if plan.limit_s is not None and plan.limit_s > 2 * NOTICE_S and plan.limit_notice:
        await asyncio.sleep(plan.limit_s - NOTICE_S)
        session.say(plan.limit_notice)
