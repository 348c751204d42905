"""The little of a switchboard that a test needs to be called by a real SIP phone.

It answers every INVITE (RFC 3261) with mu-law over RTP (RFC 3550), and carries the call on by
AudioSocket, as Asterisk does with `AudioSocket(...)` in its dialplan: what the phone says goes to
the server as it comes, and what the server says to the phone. For one phone on this machine: no
authentication, no retransmission, no jitter buffer.
"""

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import numpy as np

from agent.codec.g711 import mulaw_decode, mulaw_encode
from agent.telephony.carriers.audiosocket import HANG_UP, UUID, MessageReader, message
from tests.support.service.live_call import Int16

HOST: Final = "127.0.0.1"
SLIN: Final = 0x10
PCMU: Final = 0
RTP_HEADER: Final = 12
SAMPLES: Final = 160

PATIENCE_S: Final = 60.0

Address = tuple[str, int]


class Switchboard(asyncio.DatagramProtocol):
    """One line. Belongs to the event loop."""

    def __init__(self, audio_port: int, group: asyncio.TaskGroup) -> None:
        self._audio_port = audio_port
        self._group = group
        self._sip: Any = None
        self._dialog: dict[str, str] = {}
        """Headers of the INVITE in progress."""
        self._phone: Address = (HOST, 0)
        self._tag = uuid.uuid4().hex
        self._line: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.num_heard = 0
        """Packets of audio from the phone."""
        self.num_said = 0
        """Packets of audio sent to the phone."""
        self.was_hung_up = False
        """True once the phone has hung up."""
        self.has_agreed = False
        """The phone, to being hung up."""
        self.news = asyncio.Event()

    @property
    def port(self) -> int:
        port: int = self._sip.get_extra_info("sockname")[1]
        return port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._sip = transport

    def datagram_received(self, data: bytes, addr: Address) -> None:
        head, _, body = data.decode().partition("\r\n\r\n")
        first, *lines = head.split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in
                   (line.partition(":") for line in lines)}  # fmt: skip
        method = first.split()[0]
        if method == "INVITE" and not self._dialog:
            self._dialog, self._phone = headers, addr
            self._line = self._group.create_task(self._talk(body))
        elif first == "SIP/2.0 200 OK" and headers["cseq"].endswith("BYE"):
            self.has_agreed = True
            self.news.set()
        elif method == "BYE":
            self._reply(headers, addr, "200 OK")
            self.was_hung_up = True
            self.stop()
            self.news.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                self.news.clear()
                await self.news.wait()

    def stop(self) -> None:
        if self._line is not None:
            self._line.cancel()

    def heard(self, pcm: Int16) -> None:
        """Take audio of the phone's microphone."""
        self.num_heard += 1
        self.news.set()
        if self._writer is not None:
            self._writer.write(message(SLIN, pcm.astype("<i2").tobytes()))

    def _reply(self, headers: dict[str, str], addr: Address, status: str, sdp: str = "") -> None:
        lines = [f"SIP/2.0 {status}"]
        lines += [f"{name}: {headers[name]}" for name in ("via", "from", "call-id", "cseq")]
        to = headers["to"] if "tag=" in headers["to"] else f"{headers['to']};tag={self._tag}"
        lines += [f"to: {to}", f"contact: <sip:bot@{HOST}:{self.port}>"]
        self._send(lines, sdp, addr)

    def _send(self, lines: list[str], sdp: str, addr: Address) -> None:
        if sdp:
            lines.append("content-type: application/sdp")
        text = "\r\n".join([*lines, f"content-length: {len(sdp)}", "", sdp])
        self._sip.sendto(text.encode(), addr)

    def _hang_up(self) -> None:
        """The server has: tell the phone."""
        asked = self._dialog
        contact = re.findall(r"<(sip:[^>]+)>", asked["contact"])[0]
        self._send(
            [
                f"BYE {contact} SIP/2.0",
                f"via: SIP/2.0/UDP {HOST}:{self.port};branch=z9hG4bK{uuid.uuid4().hex}",
                f"from: {asked['to']};tag={self._tag}",
                f"to: {asked['from']}",
                f"call-id: {asked['call-id']}",
                "cseq: 1 BYE",
                "max-forwards: 70",
            ],
            "",
            self._phone,
        )

    async def _talk(self, offer: str) -> None:
        """One call, from answering it to its end."""
        to = (
            re.findall(r"c=IN IP4 (\S+)", offer)[0],
            int(re.findall(r"m=audio (\d+)", offer)[0]),
        )
        reader, self._writer = await asyncio.open_connection(HOST, self._audio_port)
        try:
            self._writer.write(message(UUID, uuid.uuid4().bytes))
            loop = asyncio.get_running_loop()
            rtp, _ = await loop.create_datagram_endpoint(lambda: Rtp(self), local_addr=(HOST, 0))
            port = rtp.get_extra_info("sockname")[1]
            sdp = (
                f"v=0\r\no=- 1 1 IN IP4 {HOST}\r\ns=-\r\nc=IN IP4 {HOST}\r\nt=0 0\r\n"
                f"m=audio {port} RTP/AVP {PCMU}\r\na=rtpmap:{PCMU} PCMU/8000\r\na=ptime:20\r\n"
            )
            self._reply(self._dialog, self._phone, "200 OK", sdp)
            with contextlib.closing(rtp):
                await self._carry(reader, rtp, to)
            self._hang_up()
        finally:
            self._writer.close()

    async def _carry(self, reader: asyncio.StreamReader, rtp: Any, to: Address) -> None:
        """Pass the server's audio to the phone as it comes. Returns when the server hangs up."""
        messages = MessageReader()
        while data := await reader.read(4096):
            for kind, payload in messages.feed(data):
                if kind == HANG_UP:
                    return
                assert kind == SLIN
                number = self.num_said = self.num_said + 1
                self.news.set()
                header = bytes([0x80, PCMU]) + number.to_bytes(2, "big")
                header += (number * SAMPLES).to_bytes(4, "big") + b"bots"
                rtp.sendto(header + mulaw_encode(np.frombuffer(payload, "<i2")), to)


class Rtp(asyncio.DatagramProtocol):
    """Receiver of the phone's audio."""

    def __init__(self, board: Switchboard) -> None:
        self._board = board

    def datagram_received(self, data: bytes, addr: Address) -> None:
        if data[1] & 0x7F == PCMU:
            self._board.heard(mulaw_decode(data[RTP_HEADER:]))


@asynccontextmanager
async def switchboard(audio_port: int) -> AsyncIterator[Switchboard]:
    """Run a switchboard that hands its calls to the AudioSocket at this port."""
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as group:
        transport, board = await loop.create_datagram_endpoint(
            lambda: Switchboard(audio_port, group), local_addr=(HOST, 0)
        )
        with contextlib.closing(transport):
            yield board
        board.stop()
