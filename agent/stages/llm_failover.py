"""In which engine a conversation is, and what becomes of it when that engine hangs.

The engine owns a thread of its own and survives a step that raises. One that hangs is abandoned and
loaded anew by its stage; each chat notices that at its next turn and tells the new engine what was
said, so that the call goes on.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, NoReturn

import llm_engine
from agent.errors import StageError
from agent.session.ports.stage_ports import ChatMessage, Tools
from llm_engine.chat.tool_calls import CallingMessage

from .model_thread import StageThread
from .stall_timeout import patience
from .tool_call_adapter import tool_use

LOAD_TIMEOUT_S: Final = 60.0
"""An engine that is being loaded anew is worth waiting for; a large model takes this long."""

HANGS_S: Final = 10.0
"""An engine that has taken no step for so long hangs: one takes a fraction of a second. Counted by
`patience`: it is not blamed for a time in which nothing ran."""


class EngineBinding:
    """Where one conversation is: in whichever engine is alive, and whose model is to answer."""

    def __init__(
        self,
        stage: StageThread[llm_engine.Engine],
        sampling: llm_engine.SamplingParams,
        instructions: str,
        examples: Sequence[ChatMessage],
        small: StageThread[llm_engine.Engine] | None,
    ) -> None:
        self.sampling: Final = sampling
        self.instructions = instructions
        self.tools: tuple[str, ...] = ()
        """Definitions that the model was told of."""
        self.stage = self.wanted = stage
        """Where the newest conversation is, and where the next one is to be."""
        self._large, self._small = stage, small
        self._home = stage
        """Whose engine has the conversation."""
        self._examples = [llm_engine.ChatMessage(each.role, each.text) for each in examples]
        self.engine: llm_engine.Engine | None = None
        self.conversation: llm_engine.Conversation | None = None
        self._opening = asyncio.Lock()
        """Warming and the first message may come at once."""

    def use_small_model(self, *, small: bool) -> bool:
        """For what is asked next. Whether it will be the smaller one's."""
        is_there = self._small is not None and self._small.model is not None
        self.wanted = self._small if small and self._small and is_there else self._large
        return self.wanted is not self._large

    async def open(self) -> llm_engine.Conversation:
        """The conversation, moved to a new engine where the old one was given up, or where another
        model is to answer. A smaller one that can't is not asked again in this call."""
        async with self._opening:
            while True:
                if self.stage is self._small and self._small.model is None:
                    self.stage = self.wanted = self._large  # who waits for it to be built anew?
                stage = self.stage
                engine = await stage.call(lambda engine: engine, timeout_s=LOAD_TIMEOUT_S)
                if self.conversation is not None and engine is self.engine:
                    return self.conversation
                try:
                    fresh = await self._opened(engine)
                except StageError as error:  # no fault of what is to be told after it
                    if stage is self._large:
                        raise StageError("llm", error.message) from error
                    self.stage = self.wanted = self._large
                    self._small = None
                    continue
                left, left_engine, home = self.conversation, self.engine, self._home
                self.conversation, self.engine, self._home = fresh, engine, stage
                if left is not None and home is not stage and home.model is left_engine:
                    await left.close()  # its engine is alive, and may be needed again
                return fresh

    async def _opened(self, engine: llm_engine.Engine) -> llm_engine.Conversation:
        """A conversation that knows what was said. Nothing is left open when cancelled."""
        opening = engine.open_conversation(
            self.instructions, sampling=self.sampling, examples=self._examples
        )
        try:
            # In this task: what another one had opened would be lost if this one were cancelled.
            with as_stage_errors():
                async with patience(HANGS_S):
                    fresh = await opening
        except TimeoutError:
            give_up(self.stage, engine)
        try:
            with as_stage_errors():
                if self.tools:
                    await tell_of_tools(fresh, self.tools)
                if self.conversation is not None:
                    await fresh.reset(whole(self.instructions, self.conversation.messages))
        except BaseException:
            await fresh.close()
            raise
        return fresh


async def until_hung(stage: StageThread[llm_engine.Engine], engine: llm_engine.Engine) -> NoReturn:
    """Returns never; raises StageError, having given the engine up, once it takes no steps.

    A request may wait long for its turn and its prompt, but between two steps the engine answers.
    """
    while True:
        await asyncio.sleep(HANGS_S / 2)
        try:
            async with patience(HANGS_S / 2):
                await engine.stats()
        except TimeoutError:
            give_up(stage, engine)


def give_up(stage: StageThread[llm_engine.Engine], engine: llm_engine.Engine) -> NoReturn:
    engine.stop()  # should it ever come to
    stage.restart(engine, f"took no step for {HANGS_S:g} s")
    raise StageError("llm", "The language model took too long.") from None


@contextlib.contextmanager
def as_stage_errors() -> Iterator[None]:
    try:
        yield
    except llm_engine.RequestError as error:
        message = f"The language model can't take this: {error}"
        raise StageError("llm", message, refused=True) from error
    except llm_engine.EngineError as error:
        raise StageError("llm", f"The language model can't answer: {error}") from error


async def tell_of_tools(
    conversation: llm_engine.Conversation, definitions: tuple[str, ...]
) -> None:
    await conversation.set_tools(tool_use(Tools(definitions)).shown if definitions else ())


def whole(
    instructions: str, turns: Sequence[llm_engine.ChatMessage | CallingMessage]
) -> list[llm_engine.ChatMessage | CallingMessage]:
    """With the instructions in front: the engine would take a client's system message there for
    them."""
    return [llm_engine.ChatMessage("system", instructions), *turns]
