"""A TURN server (RFC 8656) for one machine: long-term credentials, channels, data indications.

What it does not do: permissions apart from channels, send indications, TCP, lifetimes, quotas.
Datagrams of a host without a channel are dropped, as without a permission.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from aioice import stun
from aioice.turn import make_integrity_key

Address = tuple[Any, ...]

REALM: Final = "halfsec.test"
NONCE: Final = b"f00dfeed"
HEADER_BYTES: Final = 4
MAX_BYTES: Final = 1 << 16


class TurnServer(asyncio.DatagramProtocol):
    """Listens on loopback, and relays from a port of the machine's own address for each client."""

    def __init__(self, username: str, password: str) -> None:
        self.username = username
        self._key = make_integrity_key(username, REALM, password)
        self.num_refused = 0
        """Requests without the right credentials, the first of each client among them."""
        self.num_sent = 0
        """Datagrams relayed to hosts."""
        self.num_received = 0
        """Datagrams relayed to clients."""
        self.allocations: dict[Address, Allocation] = {}
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    @property
    def port(self) -> int:
        port: int = self._transport.get_extra_info("sockname")[1]
        return port

    def close(self) -> None:
        for allocation in self.allocations.values():
            allocation.close()
        self._transport.close()

    def send(self, data: bytes, client: Address) -> None:
        """Send what a host sent to the client's relayed address."""
        self.num_received += 1
        self._transport.sendto(data, client)

    def datagram_received(self, data: bytes, addr: Address) -> None:
        if data[0] & 0xC0 == 0x40:
            self._relay(data, addr)
            return
        query = stun.parse_message(data)
        if not (
            query.attributes.get("USERNAME") == self.username
            and query.check_message_integrity(self._key)
        ):
            self.num_refused += 1
            answer = self._answer(query, stun.Class.ERROR)
            answer.attributes["ERROR-CODE"] = (401, "Unauthorized")
            answer.attributes["REALM"], answer.attributes["NONCE"] = REALM, NONCE
            self._transport.sendto(bytes(answer), addr)
        elif query.message_method == stun.Method.ALLOCATE:
            self._allocate(query, addr)
        else:
            if query.message_method == stun.Method.CHANNEL_BIND:
                allocation, peer = self.allocations[addr], query.attributes["XOR-PEER-ADDRESS"]
                # The number stands in the first half of the attribute.
                allocation.bind(query.attributes["CHANNEL-NUMBER"], tuple(peer[:2]))
            answer = self._answer(query, stun.Class.RESPONSE)
            if query.message_method == stun.Method.REFRESH:
                answer.attributes["LIFETIME"] = query.attributes["LIFETIME"]
            self._reply(answer, addr)

    def _allocate(self, query: stun.Message, addr: Address) -> None:
        allocation = self.allocations[addr] = Allocation(self, addr)
        answer = self._answer(query, stun.Class.RESPONSE)
        answer.attributes["LIFETIME"] = query.attributes["LIFETIME"]
        answer.attributes["XOR-MAPPED-ADDRESS"] = addr
        answer.attributes["XOR-RELAYED-ADDRESS"] = allocation.address
        self._reply(answer, addr)

    def _relay(self, data: bytes, addr: Address) -> None:
        channel, length = int.from_bytes(data[:2], "big"), int.from_bytes(data[2:4], "big")
        if addr in self.allocations:
            payload = data[HEADER_BYTES : HEADER_BYTES + length]
            self.num_sent += self.allocations[addr].send(channel, payload)

    def _answer(self, query: stun.Message, kind: stun.Class) -> stun.Message:
        return stun.Message(query.message_method, kind, query.transaction_id)

    def _reply(self, answer: stun.Message, addr: Address) -> None:
        answer.add_message_integrity(self._key)
        self._transport.sendto(bytes(answer), addr)


def own_address() -> str:
    """This machine's address in its network: clients leave loopback out of their candidates, and
    nothing passes between that and another address everywhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        address: str = probe.getsockname()[0]
        return address


class Allocation:
    """The relayed address of one client."""

    def __init__(self, server: TurnServer, client: Address) -> None:
        self._server = server
        self._client = client
        self._peers: dict[int, Address] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind((own_address(), 0))
        self.address: tuple[str, int] = self._socket.getsockname()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)

    def close(self) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()

    def bind(self, channel: int, peer: Address) -> None:
        self._peers[channel] = peer

    def send(self, channel: int, payload: bytes) -> int:
        """Returns the number of datagrams sent: none where the channel is not bound."""
        peer = self._peers.get(channel)
        if peer is None:
            return 0
        self._socket.sendto(payload, peer)
        return 1

    def _read(self) -> None:
        data, addr = self._socket.recvfrom(MAX_BYTES)
        channels = [channel for channel, peer in self._peers.items() if peer == tuple(addr[:2])]
        if channels:
            head = channels[0].to_bytes(2, "big") + len(data).to_bytes(2, "big")
            self._server.send(head + data, self._client)
        elif any(peer[0] == addr[0] for peer in self._peers.values()):
            told = stun.Message(stun.Method.DATA, stun.Class.INDICATION)
            told.attributes["XOR-PEER-ADDRESS"], told.attributes["DATA"] = addr, data
            self._server.send(bytes(told), self._client)


@asynccontextmanager
async def turn_server(username: str, password: str) -> AsyncIterator[TurnServer]:
    """A server that runs, for a client with these credentials."""
    loop = asyncio.get_running_loop()
    _, server = await loop.create_datagram_endpoint(
        lambda: TurnServer(username, password), local_addr=("127.0.0.1", 0)
    )
    try:
        yield server
    finally:
        server.close()
