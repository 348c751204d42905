"""What is said in a telephone call though no model decides it: that it is recorded, that it has to
end, what is left with a machine. Runs beside the call, and ends with it."""

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
"""Before its end a call that has a limit says so."""

NAVIGATE: Final = (
    "An automated menu has answered this call, no person. Hear all its choices, and press the keys "
    "of the one that serves your task with press_keys, without a word. Speak only where it asks "
    "for words. When a person answers, talk as usual."
)
"""What the model is told then, behind its other instructions."""

_log = logging.getLogger(__name__)


BEEP_S: Final = 45.0
"""The longest that the beep of a machine is waited for. Greetings take up to half a minute, and a
beep may be none that we know."""


class Speaker(Protocol):
    """The call, as far as it is needed here."""

    async def news(self) -> None: ...

    def hang_up(self, cause: Cause) -> None: ...

    async def say_all(self, session: Session, text: str) -> bool: ...

    async def send_tone(self) -> None: ...


async def conduct(session: Session, speaker: Speaker, keys: PhoneKeys, plan: CallPlan) -> None:
    """Say all of it in its time."""
    async with asyncio.TaskGroup() as group:
        opening = group.create_task(_open(session, speaker, keys, plan))
        group.create_task(_announce_limit(session, plan))
        if plan.watch is not None:
            group.create_task(_meet_machine(session, speaker, keys, plan, plan.watch, opening))


@asynccontextmanager
async def uninterrupted(session: Session, keys: PhoneKeys) -> AsyncIterator[None]:
    """Nobody's speech stops what is said meanwhile, nor is it answered. Keys wait for its end."""
    detection = session.settings.turn_detection
    with keys.held():
        if detection is None:  # only keys and orders end turns
            yield
            return
        deaf = replace(detection, interrupt_response=False, create_response=False)
        await session.handle(UpdateSession(session.settings.changed(turn_detection=deaf)))
        try:
            yield
        finally:
            await session.handle(UpdateSession(session.settings.changed(turn_detection=detection)))


async def _open(session: Session, speaker: Speaker, keys: PhoneKeys, plan: CallPlan) -> None:
    """Nothing is recorded before the caller knows of it. Who talks meanwhile is answered by the
    greeting."""
    if plan.record is not None:
        async with uninterrupted(session, keys):
            if plan.announcement:
                is_told = await speaker.say_all(session, plan.announcement)
            else:
                await speaker.send_tone()
                is_told = True
        if is_told:
            plan.record()
        else:
            _log.warning("call %s is not recorded: the caller was not told to the end", session.id)
    if plan.greeting:
        session.say(plan.greeting)


async def _meet_machine(
    session: Session,
    speaker: Speaker,
    keys: PhoneKeys,
    plan: CallPlan,
    watch: AnsweringMachineDetector,
    opening: asyncio.Task[None],
) -> None:
    """Where a machine or a menu has answered."""
    while not (is_menu := _is_menu(plan, watch)):
        if watch.is_machine and plan.on_machine != "talk":
            break
        await speaker.news()
    if not is_menu:
        _log.info("call %s was answered by a machine", session.id)
        opening.cancel()
        await asyncio.wait({opening})
        if plan.on_machine == "message":
            is_menu = not await _leave_message(session, speaker, keys, plan, watch)
    if is_menu:
        _log.info("call %s was answered by a menu: %s", session.id, plan.on_menu)
        if plan.on_menu == "navigate":
            await _navigate(session)
        if plan.on_menu != "hang_up":
            return
    speaker.hang_up("machine")


def _is_menu(plan: CallPlan, watch: AnsweringMachineDetector) -> bool:
    """One that is dealt with otherwise than machines."""
    return watch.is_menu and plan.on_menu != "as_machine"


async def _leave_message(
    session: Session,
    speaker: Speaker,
    keys: PhoneKeys,
    plan: CallPlan,
    watch: AnsweringMachineDetector,
) -> bool:
    """Behind the beep, and nothing interrupts it. False: it is a menu after all."""
    async with uninterrupted(session, keys):
        await session.handle(CancelResponse())  # refused where nothing is being said
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEEP_S):
                while not watch.takes_message:
                    if _is_menu(plan, watch):
                        return False
                    await speaker.news()
        await speaker.say_all(session, plan.machine_message)
    return True


async def _navigate(session: Session) -> None:
    """Tell the model what it talks with, and take longer pauses for its: menus pause between their
    choices, and who talks then misses the next one."""
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
