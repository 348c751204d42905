"""Every way in which a telephone call can end, and its cause in the record."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.calls.service import CallOver
from agent.calls.state_store.memory import MemoryStateStore
from agent.errors import StageError
from agent.http.auth.principal import FILE_KEY, KeyLimits, Principal
from agent.realtime.socket import SocketEnd, Take
from agent.session.api.conversation import ModelCall
from agent.session.session import Session
from agent.telephony.call_plan import Cause
from agent.telephony.carriers.audiosocket import UUID, AudioSocket, message
from agent.telephony.media_session import PhoneLine
from agent.telephony.transport import PhoneCall
from latency_budget.account.clock import ManualClock
from latency_budget.storage.call_records import CallRecord
from tests.agent.telephony.carriers.test_twilio import frame, media
from tests.agent.telephony.outbound.test_call_tools import Move
from tests.agent.telephony.test_call_detail_record import Kept, nothing, record_of, stops
from tests.agent.telephony.test_transport import Link
from tests.support.fakes.stages import Calling
from tests.support.telephony.telephony_harness import ScriptedCarrier, TelephonyHarness, play

Story = Callable[[TelephonyHarness, ScriptedCarrier], Awaitable[None]]

HANGS_UP = '[agents.default]\nserver_tools = ["phone:hang_up"]\n'
GREETS = "[agents.default]\ngreeting = 'Hello there.'\n"
HANGS_UP_ON_MACHINES = "[telephony]\non_machine = 'hang_up'\n"
TRANSFERS = (
    '[telephony]\ntransfers = {sales = "+493012345"}\n'
    '[agents.default]\nserver_tools = ["phone:transfer"]\n'
)
BYE = Calling("Bye.", (ModelCall("hang_up", "{}"),))
MOVES = Calling("I connect you.", (ModelCall("transfer", '{"to": "sales"}'),))


@dataclass
class Way:
    """`how`: further arguments of a scene's call."""

    name: str
    cause: Cause
    reason: str
    story: Story = nothing
    replies: tuple[Calling | str, ...] = ()
    settings: str = "[telephony]\n"
    prepare: Callable[[TelephonyHarness], None] = lambda scene: None
    how: dict[str, Any] = field(default_factory=dict)


async def closes(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    carrier.leave(1000)


async def breaks(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    carrier.leave(1006)


async def sends_rubbish(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    carrier.say(media("no base64"))


async def asks(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    scene.ears.say("That is all.")


async def is_stopped(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    assert scene.serving is not None
    scene.serving.cancel()


async def outlasts_the_drain(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    scene.calls.stopping.set()


async def transfer_in_progress(scene: TelephonyHarness) -> Move:
    """The transfer that the caller has asked for, which the carrier has not confirmed."""
    move = scene.sockets._transfers["Twilio"]
    assert isinstance(move, Move)
    scene.ears.say("Sales, please.")
    await move.is_done.wait()
    return move


async def asks_and_is_taken_off(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    """The carrier takes the call away before it has said that it has it."""
    move = await transfer_in_progress(scene)
    carrier.say(frame("stop"))
    await asyncio.sleep(0.3)
    assert scene.is_empty, "the call may come back before the answer is here"
    move.settle()


async def interrupts_a_transfer(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    """Too late: the carrier has been asked."""
    move = await transfer_in_progress(scene)
    scene.ears.say("No, wait.")
    await asyncio.sleep(2)
    move.settle()
    await asyncio.sleep(2)
    carrier.say(frame("stop"))


async def is_taken_off_a_server_that_ends(
    scene: TelephonyHarness, carrier: ScriptedCarrier
) -> None:
    """The carrier has not said that it has the call when the web server waits no longer."""
    await transfer_in_progress(scene)
    carrier.say(frame("stop"))
    await asyncio.sleep(0.3)
    assert scene.serving is not None
    scene.serving.cancel()


async def is_taken_off_and_forgotten(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    """The account is closed before the carrier was asked."""
    move = await transfer_in_progress(scene)
    carrier.say(frame("stop"))
    await asyncio.sleep(0.3)
    assert move.moving is not None
    move.moving.cancel()


async def outlasts_the_drain_amid_a_transfer(
    scene: TelephonyHarness, carrier: ScriptedCarrier
) -> None:
    """The end of its stream would end the call before the carrier has taken it off."""
    move = await transfer_in_progress(scene)
    scene.calls.stopping.set()
    await asyncio.sleep(1)
    assert carrier.closed is None
    assert not scene.is_empty, "the drain waits for it"
    move.settle()


async def is_not_moved(scene: TelephonyHarness, carrier: ScriptedCarrier) -> None:
    scene.ears.say("Sales, please.")
    await asyncio.sleep(20)
    carrier.say(frame("stop"))


def with_move(move: Move) -> Callable[[TelephonyHarness], None]:
    def prepare(scene: TelephonyHarness) -> None:
        scene.sockets._transfers = {"Twilio": move}

    return prepare


def breaks_ears(scene: TelephonyHarness) -> None:
    scene.stages.fault = StageError("asr", "the detector is gone")


def has_a_mistake(scene: TelephonyHarness) -> None:
    scene.stages.fault = LookupError("a mistake of ours")


def is_stopped_while_it_begins(scene: TelephonyHarness) -> None:
    async def new_ears(detection: object) -> Any:
        assert scene.serving is not None
        scene.serving.cancel()
        await asyncio.Event().wait()

    scene.stages.new_ears = new_ears  # type: ignore[method-assign]


class FullStore(MemoryStateStore):
    """All slots are held."""

    async def take_slot(self, *what: Any, **how: Any) -> bool:
        return False


def finds_no_line_in_the_fleet(scene: TelephonyHarness) -> None:
    """Another server has the only call of its key."""
    scene.principal = Principal("carrier", "key", KeyLimits(1), key_id="key:1")

    scene.call_service.state_store = FullStore(ManualClock(), is_shared=True)  # type: ignore[misc]


def revokes(scene: TelephonyHarness) -> None:
    scene.principal = Principal("carrier", "key", key_id=f"{FILE_KEY}gone")


STOP = "the carrier ended the stream"
CLOSED = "the carrier closed the stream"

WAYS = [
    Way("the caller hangs up", "caller_hung_up", STOP, stops),
    Way("the socket closes without a stop", "lost", CLOSED, closes),
    Way("the connection breaks", "lost", "the connection to the carrier broke", breaks),
    Way("the carrier falls silent", "lost", "the client sent nothing", how={"silent": True}),
    Way(
        "the carrier does not read", "lost", "does not read", settings=GREETS, how={"reads": False}
    ),
    Way("the stream is bad", "bad_stream", "not base64", sends_rubbish),
    Way("it is too long", "time_limit", "time limit", settings="[telephony]\nlimit_s = 20\n"),
    Way("nobody speaks", "silent", "nobody has spoken", settings=GREETS),
    Way("its key is revoked", "revoked", "was revoked", prepare=revokes),
    Way(
        "its key has no line in the fleet",
        "refused",
        "All calls that this key may hold",
        prepare=finds_no_line_in_the_fleet,
    ),
    Way("a stage is broken", "failed", "restarting", prepare=breaks_ears),
    Way("the server is stopped", "stopped", "is being stopped", is_stopped),
    Way("it outlasts the drain", "stopped", "is being stopped", outlasts_the_drain),
    Way("the same at its start", "stopped", "stopped", prepare=is_stopped_while_it_begins),
    Way("the agent hangs up", "agent_hung_up", "hung up", asks, (BYE,), HANGS_UP),
    Way(
        "a machine answers",
        "machine",
        "hung up",
        settings=HANGS_UP_ON_MACHINES,
        how={"parameters": {"answered_by": "machine_start"}},
    ),
    Way(
        "it is transferred",
        "transferred",
        "transferred to sales",
        asks,
        (MOVES,),
        TRANSFERS,
        with_move(Move()),
    ),
    Way(
        "it is taken off first",
        "transferred",
        STOP,
        asks_and_is_taken_off,
        (MOVES,),
        TRANSFERS,
        with_move(Move(waits=True)),
    ),
    Way(
        "the caller interrupts a transfer",
        "transferred",
        STOP,
        interrupts_a_transfer,
        (MOVES, "Yes?"),
        TRANSFERS,
        with_move(Move(waits=True)),
    ),
    Way(
        "he interrupts one that fails",
        "caller_hung_up",
        STOP,
        interrupts_a_transfer,
        (MOVES, "Yes?"),
        TRANSFERS,
        with_move(Move("no way", waits=True)),
    ),
    Way(
        "he hangs up while one fails",
        "caller_hung_up",
        STOP,
        asks_and_is_taken_off,
        (MOVES,),
        TRANSFERS,
        with_move(Move("no way", waits=True)),
    ),
    Way(
        "it is taken off a server that ends",
        "caller_hung_up",
        STOP,
        is_taken_off_a_server_that_ends,
        (MOVES,),
        TRANSFERS,
        with_move(Move(waits=True)),
    ),
    Way(
        "it is taken off, and its transfer never begins",
        "caller_hung_up",
        STOP,
        is_taken_off_and_forgotten,
        (MOVES,),
        TRANSFERS,
        with_move(Move(waits=True)),
    ),
    Way(
        "it outlasts the drain amid a transfer",
        "transferred",
        "is being stopped",
        outlasts_the_drain_amid_a_transfer,
        (MOVES,),
        TRANSFERS,
        with_move(Move(waits=True)),
    ),
    Way(
        "it outlasts the drain amid one that fails",
        "stopped",
        "is being stopped",
        outlasts_the_drain_amid_a_transfer,
        (MOVES,),
        TRANSFERS,
        with_move(Move("no way", waits=True)),
    ),
    Way(
        "a transfer fails",
        "caller_hung_up",
        STOP,
        is_not_moved,
        (MOVES, "I am sorry."),
        TRANSFERS,
        with_move(Move("no way")),
    ),
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_why_a_call_ended(tmp_path: Path, way: Way) -> None:
    record: CallRecord = record_of(
        tmp_path,
        way.story,
        *way.replies,
        settings=way.settings,
        prepare=way.prepare,
        **way.how,
    )
    assert record.cause == way.cause
    assert way.reason in record.reason


def test_a_mistake_of_ours_is_kept_as_one(tmp_path: Path) -> None:
    kept = Kept()

    async def main(clock: ManualClock) -> None:
        scene = TelephonyHarness(clock, tmp_path, calls={"store": kept})
        has_a_mistake(scene)
        with pytest.raises(ExceptionGroup):
            await scene.call(lambda carrier: nothing(scene, carrier))
        assert scene.is_empty

    play(main)
    (record,) = (each for each in kept if isinstance(each, CallRecord))
    assert (record.cause, record.reason) == ("failed", "internal error")


# --- the carrier's last word, and ours ---


class Parted(Link):
    """One that has ended like this."""

    def __init__(self, parting: SocketEnd = SocketEnd.STOPPED) -> None:
        super().__init__()
        self._parting = parting

    async def carry(self, take: Take) -> SocketEnd:
        return self._parting


def on_audio_socket(link: Parted) -> PhoneCall:
    line = PhoneLine(AudioSocket())
    assert line.open(message(UUID, bytes(16)) + message(0x10, bytes(320)))
    return PhoneCall(line, link, ManualClock())


@pytest.mark.parametrize(
    ("parting", "cause"), [(SocketEnd.HUNG_UP, "caller_hung_up"), (SocketEnd.BROKE, "lost")]
)
async def test_where_no_carrier_says_stop_a_closed_socket_is_the_end(
    parting: SocketEnd, cause: Cause
) -> None:
    phone = on_audio_socket(Parted(parting))
    with pytest.raises(CallOver) as over:
        await phone.serve(cast(Session, SimpleNamespace(id="sess_1")))
    await phone.end(1000, over.value.reason)
    assert phone.cause == cause


async def test_the_first_cause_stands() -> None:
    phone = on_audio_socket(Parted())
    phone.hang_up("machine", "a machine has answered")
    phone.hang_up("agent_hung_up")
    with pytest.raises(CallOver, match="a machine has answered"):
        await phone.serve(cast(Session, SimpleNamespace(id="sess_1")))
    await phone.end(1000, "the session reached its time limit")
    assert phone.cause == "machine"
