"""A real SIP phone (baresip, of Debian) calls: it is greeted, interrupts, is answered, hangs up."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

from tests.agent.telephony.test_live import turns_of
from tests.support.service.live import LiveServer
from tests.support.service.live_call import Int16, overlap, recording, silence, transcript
from tests.support.telephony.audio_socket_peer import audio_socket_agent
from tests.support.telephony.sip_switchboard import HOST, Switchboard, switchboard

pytest_plugins = ["tests.support.service.live_fixtures"]
pytestmark = [pytest.mark.slow, pytest.mark.models]

BARESIP: Final = shutil.which("baresip")
RATE_HZ: Final = 8_000
PACKETS_PER_S: Final = 50
BEFORE_S: Final = 4.0
"""Of the greeting, which lasts nine seconds, before it is interrupted."""

CONFIG: Final = """
sip_listen {host}:0
audio_source aufile,{folder}/said.wav
audio_player aubridge,nowhere
snd_path {folder}
module_path {modules}
module g711.so
module aubridge.so
module aufile.so
module sndfile.so
module_tmp account.so
module_app menu.so
"""
"""What it hears, `sndfile.so` writes to a file."""


def modules() -> str:
    """Where baresip's package has put them."""
    return str(next(Path("/usr/lib").glob("**/baresip/modules")))


@asynccontextmanager
async def phone(folder: Path, says: Int16, port: int) -> AsyncIterator[None]:
    """That calls who answers at this port, and says this."""
    soundfile.write(folder / "said.wav", says, RATE_HZ)
    (folder / "config").write_text(CONFIG.format(host=HOST, folder=folder, modules=modules()))
    (folder / "accounts").write_text(f"<sip:caller@{HOST}>;regint=0\n")
    (folder / "contacts").touch()
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(BARESIP), "-f", str(folder), "-n", HOST, "-e", f"/dial sip:bot@{HOST}:{port}",
            stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            yield
        finally:
            process.terminate()
            await process.wait()


def quiet_since(board: Switchboard) -> Callable[[], bool]:
    """Nothing more has been said to the phone for half a second of its own audio."""
    said, since = board.num_said, board.num_heard

    def is_quiet() -> bool:
        nonlocal said, since
        if board.num_said > said:
            said, since = board.num_said, board.num_heard
        return board.num_heard > since + PACKETS_PER_S // 2

    return is_quiet


@pytest.fixture
def reader(live: LiveServer) -> Iterator[LiveServer]:
    """A server where calls by AudioSocket are answered with a long greeting. Where there is no
    phone to call it, the test is skipped."""
    if BARESIP is None:
        assert "REQUIRE_SIP_PHONE" not in os.environ, "apt-get install baresip-core"
        pytest.skip("there is no SIP phone here: apt-get install baresip-core")
    with audio_socket_agent(live.audio_sockets, "reader"):
        yield live


async def test_a_sip_phone_is_hung_up(
    reader: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = reader.audio_sockets._phones._service
    monkeypatch.setattr(desk, "phone_rules", replace(desk.phone_rules, limit_s=1))
    async with (
        switchboard(reader.audio_port) as board,
        phone(tmp_path, silence(60, RATE_HZ), board.port),
    ):
        await board.until(lambda: board.has_agreed)
    assert board.num_said > 0


async def test_a_sip_phone_interrupts_and_is_answered(reader: LiveServer, tmp_path: Path) -> None:
    question = recording("vm-nobodyavail", RATE_HZ)
    says = np.concatenate([silence(BEFORE_S, RATE_HZ), question, silence(60, RATE_HZ)])
    num_asked = int((BEFORE_S + len(question) / RATE_HZ) * PACKETS_PER_S)
    async with switchboard(reader.audio_port) as board:
        async with phone(tmp_path, says, board.port):
            await board.until(lambda: board.num_heard >= num_asked)
            greeted = board.num_said
            await board.until(lambda: board.num_said > greeted + PACKETS_PER_S)
            await board.until(quiet_since(board))  # a turn is told of when it is over
            greeting, answer, *_ = await asyncio.to_thread(turns_of, reader)
        await board.until(lambda: board.was_hung_up)
    assert greeting.agent_text
    assert reader.config.agents["reader"].greeting.startswith(greeting.agent_text)
    assert "basket of apples" not in greeting.agent_text, "nobody heard the end"
    assert overlap(transcript("vm-nobodyavail"), answer.caller_text) > 0.6
    assert answer.agent_text
    heard = what_was_heard(tmp_path)
    assert len(heard) > (greeted + PACKETS_PER_S) * 160 * 0.9, "the phone takes what it is told"
    assert np.abs(heard[: greeted * 160]).max() > 0.05, "the greeting"
    assert np.abs(heard[greeted * 160 :]).max() > 0.05, "the answer"


def what_was_heard(folder: Path) -> npt.NDArray[np.float64]:
    (recorded,) = folder.glob("*-dec.wav")
    heard, rate_hz = soundfile.read(recorded)
    assert rate_hz == RATE_HZ
    return np.asarray(heard)
