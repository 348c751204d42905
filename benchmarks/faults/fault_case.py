"""One fault of the plan: how it strikes and passes, what it needs, what is looked at after it."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent.client.call import connect
from agent.http.auth.cli_credentials import entry_at
from benchmarks.callers.control_socket import request

from .network import BadNetwork

REPLY_TOKENS: Final = 24
"""Longest reply: it is heard to its end."""


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What a case looked at beside the call, once a turn was answered again."""

    seen: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    """Reasons for which the row fails."""


REDIAL_S: Final = 60.0


def dial(url: str) -> AbstractAsyncContextManager[Any]:
    """Call a server's voice WebSocket, for up to `REDIAL_S`. Raises ConnectError."""
    return connect(url, api_key=entry_at(url).api_key, wait_s=REDIAL_S)


class Surroundings:
    """What a case has around its server, which is started for this case alone."""

    def __init__(self, folder: Path) -> None:
        """`folder`: empty, for files of this case."""
        self.folder = folder
        self.home: Path | None = None
        """Its HALFSEC_HOME; None: that of the other cases."""
        self.log: Path | None = None
        self.settings = ""
        """Text of its settings file."""
        self.environment: dict[str, str] = {}
        self.max_reply_tokens = REPLY_TOKENS

    def dial(self, url: str) -> AbstractAsyncContextManager[Any]:
        """Call the server. Raises ConnectError."""
        return dial(url)

    def launched(self) -> dict[str, str]:
        """Write the settings file. Returns all variables of the server's environment."""
        if not self.settings:
            return dict(self.environment)
        path = self.folder / "halfsec.toml"
        path.write_text(self.settings, encoding="utf-8")
        return {**self.environment, "HALFSEC_CONFIG": str(path)}


@dataclass(slots=True)
class FaultSite:
    """What a fault strikes."""

    pid: int
    control: Path
    home: Path
    network: BadNetwork | None
    restart: Callable[[], Coroutine[Any, Any, None]]
    """Starts the server anew, as a supervisor does."""
    url: str = ""
    """Address of the server itself, without the network."""
    around: Surroundings | None = None

    async def command(self, **fields: Any) -> None:
        await asyncio.to_thread(request, self.control, **fields)


Act = Callable[[FaultSite], Coroutine[Any, Any, None]]
Look = Callable[[FaultSite], Coroutine[Any, Any, Aftermath]]
Around = Callable[[Path], AbstractAsyncContextManager[Surroundings]]


async def nothing(site: FaultSite) -> None:
    """Do nothing: the fault passes by itself, or stays."""


async def nothing_more(site: FaultSite) -> Aftermath:
    """Look at nothing beside the call."""
    return Aftermath()


@dataclass(frozen=True, slots=True)
class FaultCase:
    """One row of the table."""

    name: str
    strike: Act
    mend: Act = nothing
    """Ends the fault, where in life it would end without the service: the disk has room again."""
    keeps_call: bool = True
    """The call's history is promised to survive. Not with the end of the process."""
    spoils: bool = False
    """The server is not used for another row."""
    at_end_of_speech: bool = False
    """It strikes when the caller's last voiced sample is said. For faults that would be over before
    the turn's end, where a caller who waits would not notice them."""
    through_network: bool = False
    stage: str | None = None
    """The stage that has to be hit; a fault that hit nothing is not passed."""
    hangs_s: float = 0.0
    """Time in s for which what hangs holds its memory."""
    not_here: Callable[[], str] = lambda: ""
    """Why it can't be run on this machine; empty: it can."""
    around: Around | None = None
    """Makes what the case has around a server of its own."""
    session: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the caller's sessions begin with."""
    look: Look = nothing_more
    """Looks at what matters beside the call, after it."""
