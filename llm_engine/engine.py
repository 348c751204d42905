"""Public entry of the engine: a loaded model on a thread of its own.

`Engine.load` builds the parts (checkpoint, backend, drafters, step loop, thread); `generate`,
`open_conversation` and `chat` are the three ways to ask it. README.md has the map.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from latency_budget.account.clock import Clock, SystemClock
from latency_budget.account.turn import TurnId
from llm_engine.backends.base import Backend, HasProcesses
from llm_engine.backends.cpu_affinity import pin_to_last_core
from llm_engine.backends.factory import make_backend
from llm_engine.chat.conversation import Conversation, OnMark, Sequences, ToolPrompts, chunks
from llm_engine.chat.conversation_pool import ConversationPool
from llm_engine.chat.template import ChatMessage, ChatTemplate
from llm_engine.chat.token_history import TokenHistory, message_end_ids
from llm_engine.chat.tool_calls import Dialect, ToolUse, dialect_of
from llm_engine.checkpoints.load import load_checkpoint
from llm_engine.checkpoints.tokenizer import LONG_TEXT_CHARS, Tokenizer
from llm_engine.core.engine_core import EngineCore
from llm_engine.core.engine_thread import EngineThread
from llm_engine.core.metrics import EngineStats
from llm_engine.core.output import TokenChunk
from llm_engine.core.request import Request
from llm_engine.kv_cache.kv_cache import SequenceId
from llm_engine.speculative.draft_model import load_drafter
from llm_engine.speculative.drafter import Drafter
from llm_engine.speculative.ngram import NgramDrafter
from llm_engine.structured_output.compiler import GrammarCompiler
from llm_engine.torch_extra import require_torch

from .config import EngineConfig, SamplingParams
from .errors import ModelError, RequestError

_log = logging.getLogger(__name__)

_DEFAULT_SAMPLING = SamplingParams()
_NO_TURN = TurnId(0)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokenizer, chat template and end tokens of a model."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None for base models, which have no chat format."""
    end_ids: frozenset[int]
    message_end_ids: tuple[int, ...] = ()
    """Tokens that end a message or a sentence."""

    @property
    def dialect(self) -> Dialect:
        """Form of the model's tool calls."""
        return dialect_of(self.template.probe_calls() if self.template else "")

    @property
    def chat_template(self) -> ChatTemplate:
        """The chat template. Raises RequestError where there is none."""
        if self.template is None:
            raise RequestError("model", "has no chat template: it can only continue token ids")
        return self.template

    async def open_history(
        self,
        template: ChatTemplate,
        context_length: int,
        system: str,
        examples: Sequence[ChatMessage] = (),
        *,
        keep_all: bool = False,
    ) -> TokenHistory:
        """An empty history with this system prompt and these examples. Raises RequestError where
        they do not fit."""
        token_bytes = self.tokenizer.token_bytes
        make = partial(
            TokenHistory, template, token_bytes, context_length, system, examples, keep_all=keep_all
        )
        num_chars = len(system) + sum(len(example.text) for example in examples)
        is_long = num_chars > LONG_TEXT_CHARS  # 2,000 take 0.4 ms of the loop, 20,000 take 12
        return await asyncio.to_thread(make) if is_long else make()


class Engine:
    """A loaded model. Methods that are `async` may be called from any event loop; `load` and
    `close` block and belong on a thread."""

    def __init__(
        self,
        backend: Backend,
        vocabulary: Vocabulary,
        *,
        context_length: int,
        config: EngineConfig,
        clock: Clock,
        drafters: Sequence[Drafter] = (),
    ) -> None:
        self.vocabulary = vocabulary
        self._processes = backend if isinstance(backend, HasProcesses) else None
        self.context_length = context_length
        self.dialect = vocabulary.dialect
        """Form of the model's tool calls, in prompts and replies."""
        self._grammars = GrammarCompiler(vocabulary.tokenizer)
        self._core = EngineCore(
            backend,
            vocabulary.tokenizer.token_bytes,
            context_length=context_length,
            prefill_chunk=config.prompt_chunk,
            max_sequences=config.max_sequences,
            clock=clock,
            drafters=drafters,
            grammars=self._grammars,
        )
        self._thinks = config.thinks
        self._switched: ChatTemplate | None = None
        """The chat template with thoughts switched the other way."""
        self._sequences = Sequences(
            self._open_sequence,
            self._core.close_sequence,
            lambda messages: message_ids(vocabulary.chat_template, messages),
            vocabulary.tokenizer.token_bytes,
        )
        self._thread = EngineThread(self._core)
        self.health = self._thread.health
        if self._processes is not None:
            self._processes.when_lost(self._thread.lose)
        if config.on_gpu:
            # On a CPU the thread shares its cores with the compute threads.
            self._thread.post(pin_to_last_core)
        self._conversations = ConversationPool(
            lambda key: self.open_conversation(
                key.system, tools=key.tools, keep_all=True, thinks=key.thinks
            )
        )

    @classmethod
    def load(
        cls,
        path: str | Path,
        config: EngineConfig | None = None,
        *,
        clock: Clock | None = None,
        on_progress: Callable[[float], None] = lambda share: None,
        wrap: Callable[[Backend], Backend] = lambda backend: backend,
    ) -> "Engine":
        """Read a GGUF file or Hugging Face directory and start the engine. Takes seconds.

        `on_progress` is called with the share of the weights that is converted, on the calling
        thread or, for several GPUs, on another; it is not called where nothing is converted. `wrap`
        may wrap the backend, to observe or to slow it. Raises ModelError naming the file, what was
        found and what is supported.
        """
        config = config or EngineConfig()
        checkpoint = load_checkpoint(Path(path))
        longest = checkpoint.config.context_length
        context_length = min(config.context_length or longest, longest)
        vocabulary = read_vocabulary(checkpoint.tokenizer, checkpoint.path, thinks=config.thinks)
        backend = make_backend(checkpoint, config, context_length, on_progress)
        drafters: list[Drafter] = [NgramDrafter()] if config.ngram_drafts else []
        if config.draft_model is not None:
            drafters.append(load_drafter(config.draft_model, vocabulary.tokenizer, config))
        if config.draft_heads is not None:
            require_torch("llm_engine.draft_heads")
            from llm_engine.speculative.head_drafter import load_head_drafter

            drafters.append(load_head_drafter(config.draft_heads, checkpoint, backend))
        return cls(
            wrap(backend),
            vocabulary,
            context_length=context_length,
            config=config,
            clock=clock or SystemClock(),
            drafters=drafters,
        )

    async def generate(
        self,
        prompt: str | Sequence[ChatMessage] | Sequence[int],
        sampling: SamplingParams = _DEFAULT_SAMPLING,
        *,
        turn: TurnId = _NO_TURN,
        deadline_ns: int | None = None,
        on_mark: OnMark | None = None,
    ) -> AsyncGenerator[TokenChunk, None]:
        """Generate a reply outside any conversation. Closing the generator stops the work.

        Its text is all that the model writes, thoughts included. A string is one user message; a
        list holds either messages or token ids taken as they are. Raises RequestError (also for a
        prompt beyond the context) and EngineError.
        """
        token_ids = await self._encoded(prompt)
        await self._compile(sampling)
        sequence = await self._open_sequence()
        try:
            request = Request(
                prompt=token_ids,
                sampling=sampling,
                end_ids=self.vocabulary.end_ids,
                max_tokens=sampling.max_tokens or self.context_length,
                sequence=sequence,
                deadline_ns=deadline_ns,
            )
            async for chunk in chunks(self._thread.submit(request), turn, on_mark):
                yield chunk
        finally:
            self._thread.post(lambda: self._core.close_sequence(sequence))

    async def open_conversation(
        self,
        system: str = "",
        *,
        sampling: SamplingParams = _DEFAULT_SAMPLING,
        examples: Sequence[ChatMessage] = (),
        tools: tuple[str, ...] = (),
        keep_all: bool = False,
        thinks: bool | None = None,
    ) -> Conversation:
        """Open a conversation with its own KV cache.

        `examples` are few-shot messages; like the system prompt they are never dropped, and
        `Conversation.reset` leaves them alone. `tools` are definitions in JSON for a chat template
        that has a place for tools. With `keep_all` no turn is dropped either: a history beyond the
        context is refused. `thinks` switches the model's thoughts, where its template can; None: as
        the engine's settings say. Raises RequestError when these do not fit or too many
        conversations are open.
        """
        prompts = self._tool_prompts(thinks)
        template = await prompts.template_with(tools)
        history = await self.vocabulary.open_history(
            template, self.context_length, system, examples, keep_all=keep_all
        )
        sequence = await self._open_sequence()
        return Conversation(
            self._thread,
            sequence,
            self._sequences,
            history,
            end_ids=self.vocabulary.end_ids,
            message_end_ids=self.vocabulary.message_end_ids,
            sampling=sampling,
            tool_prompts=prompts,
            system=system,
        )

    async def check_setting(self, system: str, tools: ToolUse | None) -> None:
        """Raise RequestError where no conversation could have this system prompt, or no reply in it
        these tools. Opens no conversation, so that it works when `max_sequences` are in use."""
        vocabulary = self.vocabulary
        history = await vocabulary.open_history(
            vocabulary.chat_template, self.context_length, system
        )
        if tools is not None:
            await self._tool_prompts(None).check(history, system, _DEFAULT_SAMPLING, tools)

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        sampling: SamplingParams = _DEFAULT_SAMPLING,
        *,
        tools: tuple[str, ...] = (),
        thinks: bool | None = None,
        turn: TurnId = _NO_TURN,
        deadline_ns: int | None = None,
        on_mark: OnMark | None = None,
    ) -> AsyncGenerator[TokenChunk, None]:
        """Generate a reply to a stateless request, which carries the whole history. Closing the
        generator stops it.

        What an earlier request had in common with this one is not computed again. Messages beyond
        the context are refused, none is dropped. `tools` and `thinks` as in `open_conversation`.
        Raises RequestError and EngineError. Use it from one event loop.
        """
        await self._compile(sampling)
        try:
            thinks = self._thinks if thinks is None else thinks
            key, conversation = await self._conversations.resume(messages, tools, thinks=thinks)
        except RequestError as error:
            raise _about_messages(error) from None
        try:
            reply = conversation.generate(turn, deadline_ns, sampling=sampling, on_mark=on_mark)
            async with aclosing(reply):
                async for chunk in reply:
                    yield chunk
        except RequestError as error:
            await conversation.close()
            raise _about_messages(error) from None
        finally:
            await self._conversations.give_back(key, conversation)

    async def warm(self) -> None:
        """Run a short prompt, so that the first call does not pay for one-time initialization."""
        prompt = self.vocabulary.tokenizer.encode("one two three four five six seven eight")
        sampling = SamplingParams(temperature=1.0, top_p=0.9, seed=0, max_tokens=4)
        async for _ in self.generate(prompt, sampling):
            pass

    async def stats(self) -> EngineStats:
        """Counters of the engine, read between two of its steps."""
        return await self._thread.call(self._core.stats, undo=lambda _: None)

    @property
    def thread(self) -> threading.Thread:
        """The thread that takes the steps; it ends after `stop`, unless it hangs."""
        return self._thread.thread

    def stop(self) -> None:
        """Begin to close without waiting for the thread: for an engine that may hang."""
        self._thread.stop()

    def close(self) -> None:
        """Stop the thread after its current step; requests under way fail with EngineError."""
        self._thread.close()
        if self._processes is not None:
            self._processes.close()

    async def _open_sequence(self) -> SequenceId:
        """Open a sequence, if need be by closing the pooled conversation that is idle longest."""
        while True:
            try:
                return await self._thread.call(
                    self._core.open_sequence, undo=self._core.close_sequence
                )
            except RequestError:
                if not await self._conversations.make_room():
                    raise

    async def _compile(self, sampling: SamplingParams) -> None:
        """Compile a grammar off the engine's thread, which all requests share."""
        if sampling.grammar is not None:
            await asyncio.to_thread(self._grammars.compile, sampling.grammar)

    def _tool_prompts(self, thinks: bool | None) -> ToolPrompts:
        template_with = partial(self._template_with, thinks=thinks)
        return ToolPrompts(self.dialect, template_with, self._grammars.compile)

    async def _template(self, thinks: bool | None) -> ChatTemplate:
        """The chat template with thoughts switched on or off; None: as the settings say."""
        template = self.vocabulary.chat_template
        if thinks is None or thinks is self._thinks:
            return template
        if self._switched is None:
            self._switched = await asyncio.to_thread(template.with_thinking, thinks)
        return self._switched

    async def _template_with(self, tools: tuple[str, ...], *, thinks: bool | None) -> ChatTemplate:
        template = await self._template(thinks)
        if not tools:
            return template
        longest = max(map(len, self.vocabulary.tokenizer.token_bytes), default=1)
        num_tokens = sum(map(len, tools)) // longest
        if num_tokens > self.context_length:
            limit = self.context_length
            problem = f"too long: more than {num_tokens} tokens; the context holds {limit}"
            raise RequestError("tools", problem)
        return await asyncio.to_thread(template.with_tools, tools)

    async def _encoded(
        self, prompt: str | Sequence[ChatMessage] | Sequence[int]
    ) -> tuple[int, ...]:
        """Encode a prompt; long ones on another thread. Raises RequestError."""
        last = prompt[-1] if prompt and not isinstance(prompt, str) else prompt
        text = last.text if isinstance(last, ChatMessage) and last.role == "user" else last
        if not prompt or (isinstance(text, str) and not text.strip()):
            raise RequestError("prompt", "is empty")
        texts = [prompt] if isinstance(prompt, str) else prompt
        num_chars = sum(
            len(each.text if isinstance(each, ChatMessage) else each)
            for each in texts
            if isinstance(each, ChatMessage | str)
        )
        if num_chars <= LONG_TEXT_CHARS:
            return self._prompt_ids(prompt)
        return await asyncio.to_thread(self._prompt_ids, prompt)

    def _prompt_ids(self, prompt: str | Sequence[ChatMessage] | Sequence[int]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            prompt = [ChatMessage("user", prompt)]
        messages = [item for item in prompt if isinstance(item, ChatMessage)]
        ids = [item for item in prompt if isinstance(item, int)]
        if len(messages) == len(prompt):
            return tuple(message_ids(self.vocabulary.chat_template, messages))
        num_known = len(self.vocabulary.tokenizer.token_bytes)
        if len(ids) != len(prompt) or not all(0 <= token_id < num_known for token_id in ids):
            raise RequestError("prompt", f"must be text, messages, or token ids below {num_known}")
        return tuple(ids)


def message_ids(template: ChatTemplate, messages: Sequence[ChatMessage]) -> list[int]:
    """Token ids of the prompt that asks for a reply to the last of these messages."""
    ids: list[int] = []
    gaps = template.gaps([message.role for message in messages])
    for message, gap in zip(messages, gaps, strict=False):
        ids += [*gap.token_ids, *template.content(message.role, message.text, gap)]
    return [*ids, *gaps[-1].token_ids]


def _about_messages(error: RequestError) -> RequestError:
    """Name the field `messages` in errors that the history reports for one of its texts."""
    is_theirs = error.field in ("text", "role", "system")
    return RequestError("messages", error.problem) if is_theirs else error


def read_vocabulary(tokenizer: Tokenizer, path: Path, *, thinks: bool = False) -> Vocabulary:
    """Read chat template and end tokens of a tokenizer; `thinks` switches the model's thoughts, if
    the template can. Raises ModelError."""
    if tokenizer.chat_template is None:
        return Vocabulary(tokenizer, None, tokenizer.end_ids)
    try:
        template = ChatTemplate(
            tokenizer.chat_template,
            tokenizer.encode_template,
            tokenizer.encode,
            bos=tokenizer.bos,
            eos=tokenizer.eos,
            control_texts=tokenizer.added_texts,
        )
        if thinks:
            template = template.with_thinking(thinks)
    except (ModelError, RequestError) as error:
        raise ModelError(f"{path}: {error}") from None
    if not template.is_incremental:
        _log.warning(
            "%s: the chat template writes a message differently once another follows; each prompt "
            "is rendered whole, and computed anew from where it begins to differ",
            path,
        )
    after_reply = template.after_reply()
    ends = {after_reply} & tokenizer.control_ids if after_reply is not None else set()
    end_ids = tokenizer.end_ids | ends
    message_ends = message_end_ids(tokenizer.token_bytes, end_ids)
    return Vocabulary(tokenizer, template, end_ids, message_ends)
