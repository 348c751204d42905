"""What is said in a telephone call though no model decides it: that it is recorded, that it has to
end, what is left with a machine. Runs beside the call, and ends with it."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, Protocol

from .answering_machine import MachineWatch
from .phone_keys import PhoneKeys
from .phone_plan import CallPlan, Cause
from .requests import CancelResponse, UpdateSession
from .session import Session

NOTICE_S: Final = 30.0
"""Before its end a call that has a limit says so."""

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
        session.aloud.say(plan.greeting)


async def _meet_machine(
    session: Session,
    speaker: Speaker,
    keys: PhoneKeys,
    plan: CallPlan,
    watch: MachineWatch,
    opening: asyncio.Task[None],
) -> None:
    """Where a machine has answered: leave the message, which nothing interrupts, and hang up."""
    while not watch.is_machine:
        await speaker.news()
    _log.info("call %s was answered by a machine", session.id)
    opening.cancel()
    await asyncio.wait({opening})
    if plan.machine_message:
        async with uninterrupted(session, keys):
            await session.handle(CancelResponse())  # refused where nothing is being said
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEEP_S):
                    while not watch.takes_message:
                        await speaker.news()
            await speaker.say_all(session, plan.machine_message)
    speaker.hang_up("machine")


async def _announce_limit(session: Session, plan: CallPlan) -> None:
    if plan.limit_s is not None and plan.limit_s > 2 * NOTICE_S and plan.limit_notice:
        await asyncio.sleep(plan.limit_s - NOTICE_S)
        session.aloud.say(plan.limit_notice)
