"""The words of one reply: generated, cut into pieces to speak, with tools called in between.

A model that calls a tool of the server has said what comes before; the tool runs, its result is
told to the model, and the model goes on: another round of the same reply. Nothing runs before the
reply is announced: of a guess the tools would be run in vain, and perhaps not harmlessly. Calls of
a client's tools are told to it and end the reply; it asks for the next one.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, Protocol

from agent.errors import StageError
from agent.session.api.conversation import ModelCall, ToolRound
from agent.session.api.server_events import Usage
from agent.session.ports.stage_ports import ChatMessage, ChatPort, ReplyToken, Tools, ToolsPort
from latency_budget.account.clock import Clock
from latency_budget.account.marks import MarkName
from tts.text_chunker import CutterConfig, SpeakablePiece, TextChunker

from .heartbeat import Pulse
from .response import Reply
from .synthesis import SynthesisQueue

MAX_ROUNDS: Final = 5
"""Of tools in one reply. After the last the model has to answer: a small one may call for ever."""

INTERRUPTED: Final = "Error: this was cancelled, because the caller interrupted."
TOO_LONG: Final = "Error: the result is too long to be read."


class Outlet(Protocol):
    """Where the words go that are not spoken."""

    reply: Reply
    """May become another one on the way: it was taken up again as another response."""
    announced: asyncio.Event
    mark: Callable[[MarkName, int], None]
    filler: str
    """Said while tools take too long."""

    @property
    def pulse(self) -> Pulse: ...

    async def show_text(self) -> None:
        """Of a reply that is not spoken: what there is."""
        ...

    async def call(self, call: ModelCall) -> None:
        """For the client to run."""
        ...


class Generation:
    """One reply's. `generate` runs once."""

    def __init__(
        self,
        out: Outlet,
        mouth: SynthesisQueue,
        chat: ChatPort,
        clock: Clock,
        tools: ToolsPort,
        cutting: Callable[[], CutterConfig | None],
    ) -> None:
        """`cutting`: says, once the model is asked, into what pieces the beginning is cut; None: as
        it comes."""
        self._out = out
        self._mouth = mouth
        self._chat = chat
        self._clock = clock
        self._tools = tools
        self._cutting = cutting
        self._usage = Usage()
        """Of the rounds that are over."""

    async def generate(self) -> None:
        """Returns when the reply has all its words. Raises StageError."""
        tools = self._out.reply.tools
        self._mark(MarkName.REPLY_REQUESTED)
        cutter = TextChunker(self._cutting() if self._out.reply.speaks else None)
        for number in range(MAX_ROUNDS + 1):
            calls = await self._round(cutter, tools if number < MAX_ROUNDS else None)
            own = tuple(call for call in calls if self._tools.has(call.name))
            for call in calls:
                if call not in own:
                    await self._out.call(call)
            if own:
                await self._run(own)
            if not own or len(own) < len(calls):
                break
            self._mark(MarkName.REPLY_REQUESTED)
            cutter = TextChunker(None)
            tools = None if tools is None else replace(tools, choice="auto")
        self._out.reply.is_complete = True
        await self._mouth.finish()

    async def _round(self, cutter: TextChunker, tools: Tools | None) -> list[ModelCall]:
        """One answer of the model. Returns what it called."""
        first = self._out.reply
        self._resume(first)
        base = len(first.text) - first.opener_chars
        calls: list[ModelCall] = []
        tokens = self._chat.generate(
            first.turn,
            deadline_ns=first.deadline.at_ns,
            max_tokens=first.max_tokens,
            on_mark=lambda name, at_ns: self._out.mark(name, at_ns),
            tools=tools,
        )
        async with aclosing(tokens):
            async for token in tokens:
                self._count(token)
                calls += token.calls
                if first.speaks:
                    for piece in cutter.push(token.text):
                        await self._put(piece, base)
                else:
                    await self._out.show_text()
        if first.speaks:
            for piece in cutter.flush():
                await self._put(piece, base)
        return calls

    def _count(self, token: ReplyToken) -> None:
        reply, before = self._out.reply, self._usage
        reply.usage = Usage(
            before.input_tokens + token.usage.input_tokens,
            before.cached_tokens + token.usage.cached_tokens,
            before.output_tokens + token.usage.output_tokens,
        )
        reply.hit_limit = token.finish_reason == "length"
        reply.text += token.text

    async def _put(self, piece: SpeakablePiece, base: int) -> None:
        if piece.index == 0 and not self._out.reply.rounds:
            self._mark(MarkName.FIRST_PIECE)
        await self._mouth.put(piece, base)

    def _resume(self, reply: Reply) -> None:
        """The model goes on after its tools, behind what was said before."""
        self._usage = reply.usage
        if reply.rounds:
            if reply.text[-1:].strip():
                reply.text += " "
            reply.rounds[-1] = replace(reply.rounds[-1], resumes_at=len(reply.text))

    async def _run(self, calls: tuple[ModelCall, ...]) -> None:
        await self._out.announced.wait()
        reply = self._out.reply
        end = len(reply.text)
        # Whoever cuts the reply meanwhile finds in it what was begun.
        reply.rounds.append(ToolRound(end, end, calls, (INTERRUPTED,) * len(calls)))
        self._out.pulse.touch()
        self._mark(MarkName.TOOL_START)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(self._mouth.fill_silence(self._out.filler))
            tasks = [group.create_task(self._tools.run(call, reply.item_id)) for call in calls]
            results = [await task for task in tasks]
            waiting.cancel()
        self._mark(MarkName.TOOL_DONE)
        await self._tell(results)

    async def _tell(self, results: Sequence[str]) -> None:
        told: list[str] = []
        for result in results:
            try:
                await self._chat.commit(ChatMessage("tool", result))
            except StageError as error:
                if not error.refused:
                    raise
                result = TOO_LONG
                await self._chat.commit(ChatMessage("tool", result))
            told.append(result)
        rounds = self._out.reply.rounds
        rounds[-1] = replace(rounds[-1], results=tuple(told))

    def _mark(self, name: MarkName) -> None:
        self._out.mark(name, self._clock.now_ns())
