"""Call tools of the model: hang up, transfer, press keys.

They are server tools like others, listed in `server_tools` as "phone:hang_up", and exist in
telephone calls only. Each waits until the caller has heard the part of the reply before it; a
caller who interrupts that part stops the tool too, and the call goes on.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from agent.config.tools import PHONE_PREFIX
from agent.telephony.outbound.transfer import TransferError
from agent.tools.api import ToolError
from agent.tools.server_tool import ServerTool, definition_of, one_line

from .call_plan import CallPlan, Cause

MAX_KEYS: Final = 20
"""Keys of one call of the tool: 4 s of tones. Longer numbers take several calls."""

LONGEST_S: Final = 60.0
"""Time limit of a tool. It is longer than that of other tools: most of it is the agent's own
speech, during which the reply shows progress."""

CARRIER_S: Final = 1.5
"""Time for the carrier to take a transferred call off this stream. Closing the stream before that
may end the call: for Twilio the end of the stream is the end of the verb."""

_KEYS: Final = re.compile(r"[0-9*#A-D]+")

_HANGS_UP: Final = "Ends the telephone call. Say goodbye before you call it."
_TRANSFERS: Final = (
    "Connects the caller with somebody else, and ends your part in the call. Say so before you "
    "call it."
)
_PRESSES: Final = "Presses keys of the telephone, as menus at the other end ask for."

SAY_GOODBYE: Final = (
    "Say goodbye now, in a few words. The call ends by itself when the caller has heard them."
)

ENDS_BY_ITSELF: Final = "The call ends by itself when the caller has heard all this."


class Receiver(Protocol):
    """A telephone call as its tools see it."""

    @property
    def carrier(self) -> str: ...

    ends_after_reply: bool
    """Hang up once the caller has heard the current reply, unless the caller answers it."""

    async def until_heard(self) -> bool: ...

    def hang_up(self, cause: Cause, reason: str = ...) -> None: ...

    async def transfer(self, number: str) -> None:
        """Raises TransferError. Cancelling the wait does not stop the transfer."""
        ...

    async def send_keys(self, keys: str) -> None: ...


class HangUpTool:
    """`ServerTool` by which the model ends its call, once its last words were heard."""

    name = "hang_up"
    definition = definition_of(name, _HANGS_UP, {"type": "object", "properties": {}})
    timeout_s = LONGEST_S
    is_background = False

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def call(self, arguments: str) -> str:
        try:
            async with asyncio.timeout(LONGEST_S / 2):
                was_heard = await self._receiver.until_heard()
        except TimeoutError:
            self._receiver.ends_after_reply = True
            return ENDS_BY_ITSELF
        if not was_heard:
            self._receiver.ends_after_reply = True
            return SAY_GOODBYE
        self._receiver.hang_up("agent_hung_up")
        return "The call is over."


class Transfer:
    """A `ServerTool`."""

    name = "transfer"
    timeout_s = LONGEST_S
    is_background = False

    def __init__(self, receiver: Receiver, plan: CallPlan) -> None:
        self._receiver = receiver
        self._plan = plan
        to = {
            "type": "string",
            "enum": list(plan.transfers),
            "description": "With whom.",
        }
        parameters = {"type": "object", "properties": {"to": to}, "required": ["to"]}
        self.definition = definition_of(self.name, _TRANSFERS, parameters)

    async def call(self, arguments: str) -> str:
        """Raises ToolError: the call goes on."""
        receiver, targets = self._receiver, self._plan.transfers
        to = _text_in(arguments, "to")
        if to not in targets:
            raise ToolError(f"calls can be transferred to {', '.join(targets)}, and nobody else")
        if self._plan.transfer is None:
            raise ToolError(
                f"calls that come by {receiver.carrier} can't be transferred; tell the caller so, "
                "and offer something else"
            )
        await receiver.until_heard()
        try:
            await receiver.transfer(targets[to])
        except TransferError as error:
            raise ToolError(f"{error}; the caller is still with you") from None
        await asyncio.sleep(CARRIER_S)
        receiver.hang_up("transferred", f"transferred to {to}")
        return "The caller has been connected."


class PressKeys:
    """A `ServerTool`."""

    name = "press_keys"
    definition = definition_of(
        name,
        _PRESSES,
        {
            "type": "object",
            "properties": {
                "keys": {
                    "type": "string",
                    "pattern": f"^[0-9*#]{{1,{MAX_KEYS}}}$",
                    "description": "In their order.",
                }
            },
            "required": ["keys"],
        },
    )
    timeout_s = LONGEST_S
    is_background = False

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    async def call(self, arguments: str) -> str:
        """Raises ToolError."""
        keys = re.sub(r"[\s-]", "", _text_in(arguments, "keys")).upper()
        if not _KEYS.fullmatch(keys) or len(keys) > MAX_KEYS:
            raise ToolError(f"keys are 1 to {MAX_KEYS} of 0-9, * and #")
        await self._receiver.until_heard()
        await self._receiver.send_keys(keys)
        return f"Pressed: {' '.join(keys)}"


def phone_tools(receiver: Receiver, plan: CallPlan) -> Mapping[str, ServerTool]:
    """Tools of a call, by their names in `server_tools`. Without targets there is no `Transfer`."""
    tools: list[ServerTool] = [HangUpTool(receiver), PressKeys(receiver)]
    if plan.transfers:
        tools.append(Transfer(receiver, plan))
    return {PHONE_PREFIX + tool.name: tool for tool in tools}


def _text_in(arguments: str, name: str) -> str:
    """A string among the arguments. Raises ToolError."""
    try:
        given: Any = json.loads(arguments)
    except ValueError as error:
        raise ToolError(f"the arguments are no JSON: {one_line(error)}") from None
    value = given.get(name) if isinstance(given, dict) else None
    if not isinstance(value, str):
        raise ToolError(f"wrong arguments: {name!r} is a text, and is missing")
    return value
