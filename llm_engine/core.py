"""The engine without its thread: add and abort requests, and run them a step at a time.

A step is one plan for the backend: the next token of every reply under way, and at most one chunk
of one prompt. So a new reply's tokens never wait longer than a chunk for another's long prompt, and
replies take turns token by token.

Which prompt gets the chunk: previews (work on text that may still change) only when nothing else
wants it; otherwise the earliest deadline, then who was served longest ago.

A sequence outlives its requests. Each request brings its whole prompt; what the sequence has cached
of it is found by comparing token ids, so that committing, changing one's mind and being cut off are
all the same thing to the engine: another prompt.

Not thread-safe; the engine's thread owns it.
"""

import math
import random
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import NewType

from latency_budget.clock import Clock
from llm_engine.backends.base import Backend, Plan, SequenceRows, Slot, SubBatch
from llm_engine.config import SamplingParams
from llm_engine.errors import EngineError, RequestError
from llm_engine.reply import FinishReason, GrowingReply, Usage
from llm_engine.sequence import CachedSequence, SequenceId

RequestId = NewType("RequestId", int)

PREVIEW_CHUNK = 16
"""Prompt tokens of a preview in a step that also decodes: the replies under way slow down by a
third rather than to a crawl. Smaller chunks pay the pass over the weights too often."""


class EngineMark(StrEnum):
    """Instants of a request."""

    QUEUED = "llm_queued"
    PREFILL_START = "llm_prefill_start"
    FIRST_TOKEN = "llm_first_token"


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to be prefilled and, unless `max_tokens` is 0, continued."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    end_ids: frozenset[int]
    max_tokens: int
    """0 prefills only: a preview, at low priority."""
    sequence: SequenceId
    deadline_ns: int | None = None
    """When the first token should exist; orders prompts that wait."""


@dataclass(frozen=True, slots=True)
class Output:
    """What a step brought one request."""

    request_id: RequestId
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    """Stands with `finish_reason`."""
    error: EngineError | None = None
    """The request has failed; nothing more will come."""
    marks: tuple[tuple[EngineMark, int], ...] = ()
    """With the first token: instants so far, monotonic ns."""


@dataclass(slots=True)
class _Active:
    id: RequestId
    request: Request
    sequence: CachedSequence
    reply: GrowingReply
    seed: int
    cached_tokens: int
    last_served: int
    """Number of the step in which its prompt last advanced."""
    last_token: int | None = None
    """Sampled, not yet in the cache."""
    chosen: list[int] = field(default_factory=list)
    """The reply's tokens; kept only for a repetition penalty."""
    marks: list[tuple[EngineMark, int]] = field(default_factory=list)

    @property
    def is_preview(self) -> bool:
        return self.request.max_tokens == 0

    @property
    def is_complete_preview(self) -> bool:
        return self.is_preview and len(self.sequence.token_ids) == len(self.request.prompt)

    def prefill_order(self) -> tuple[bool, float, int]:
        deadline = self.request.deadline_ns
        return self.is_preview, math.inf if deadline is None else deadline, self.last_served


class EngineCore:
    """Requests, sequences and the step. See the module's text."""

    def __init__(
        self,
        backend: Backend,
        token_bytes: tuple[bytes, ...],
        *,
        context_length: int,
        prefill_chunk: int,
        max_sequences: int,
        clock: Clock,
    ) -> None:
        self._backend = backend
        self._token_bytes = token_bytes
        self._context_length = context_length
        self._prefill_chunk = prefill_chunk
        self._max_sequences = max_sequences
        self._clock = clock
        self._sequences: dict[SequenceId, CachedSequence] = {}
        self._active: dict[RequestId, _Active] = {}
        self._ids = count(1)
        self._num_steps = 0
        self._cancelled: list[Output] = []
        """Ends of requests that another call cut off, to be told by the next step."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._active or self._cancelled)

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    def open_sequence(self) -> SequenceId:
        """A new, empty sequence. Raises RequestError when there are too many."""
        if len(self._sequences) >= self._max_sequences:
            raise RequestError(
                "max_sequences", f"all {self._max_sequences} of the engine's sequences are in use"
            )
        sequence = CachedSequence(SequenceId(next(self._ids)), self._backend.open_slot())
        self._sequences[sequence.id] = sequence
        return sequence.id

    def close_sequence(self, sequence_id: SequenceId) -> None:
        """Forget a sequence and what still runs on it. Does nothing the second time."""
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is not None:
            self._abort_all_on(sequence_id)
            self._backend.close_slot(Slot(sequence.slot))

    def add(self, request: Request) -> RequestId:
        """Take on a request; one that still runs on the same sequence is aborted.

        Raises RequestError when the prompt is empty or does not fit into the context.
        """
        sequence = self._sequences.get(request.sequence)
        if sequence is None:
            raise RequestError("sequence", f"{request.sequence} is closed")
        num_tokens = len(request.prompt)
        if num_tokens == 0:
            raise RequestError("prompt", "is empty")
        if num_tokens >= self._context_length:
            raise RequestError(
                "prompt",
                f"has {num_tokens} tokens; the context holds {self._context_length}, and at least "
                "one is needed for the answer",
            )
        self._abort_all_on(request.sequence)
        cached = sequence.reuse(request.prompt, keep_last_open=request.max_tokens > 0)
        room = self._context_length - num_tokens
        reply = GrowingReply(
            self._token_bytes,
            request.end_ids,
            request.sampling.stop,
            min(request.max_tokens, room),
        )
        seed = request.sampling.seed
        active = _Active(
            id=RequestId(next(self._ids)),
            request=request,
            sequence=sequence,
            reply=reply,
            seed=random.SystemRandom().getrandbits(63) if seed is None else seed,
            cached_tokens=cached,
            last_served=self._num_steps,
        )
        self._active[active.id] = active
        self._mark(active, EngineMark.QUEUED)
        return active.id

    def abort(self, request_id: RequestId) -> None:
        """Nothing more will come of this request. Does nothing if it is already over."""
        self._active.pop(request_id, None)

    def step(self) -> list[Output]:
        """Run one plan. Returns at once when there is nothing to do.

        A backend that raises fails the requests it raises for, as outputs; nothing is raised here.
        """
        finished, self._cancelled = self._cancelled, []
        done = [active for active in self._active.values() if active.is_complete_preview]
        finished += [self._finish_preview(active) for active in done]
        prefilling = [a for a in self._active.values() if a.last_token is None]
        work = [
            (active, _rows(active, (active.last_token,), num_sampled=1))
            for active in self._active.values()
            if active.last_token is not None
        ]
        if prefilling:
            chosen = min(prefilling, key=_Active.prefill_order)
            work.append((chosen, self._prefill(chosen, beside_replies=bool(work))))
        if not work:
            return finished
        self._num_steps += 1
        return finished + self._run(work)

    def _prefill(self, active: _Active, *, beside_replies: bool) -> SequenceRows:
        if len(active.sequence.token_ids) == active.cached_tokens:
            self._mark(active, EngineMark.PREFILL_START)
        active.last_served = self._num_steps + 1
        start = len(active.sequence.token_ids)
        slow = active.is_preview and beside_replies
        size = min(self._prefill_chunk, PREVIEW_CHUNK) if slow else self._prefill_chunk
        token_ids = active.request.prompt[start : start + size]
        is_last = start + len(token_ids) == len(active.request.prompt)
        wants_token = is_last and not active.is_preview
        return _rows(active, token_ids, num_sampled=int(wants_token))

    def _run(self, work: list[tuple[_Active, SequenceRows]]) -> list[Output]:
        plan = Plan(tuple(SubBatch((rows,)) for _, rows in work))
        try:
            result = self._backend.collect(self._backend.launch(plan))
        except Exception as error:
            if len(work) > 1:
                # Which request is at fault? Positions make a step repeatable: run them alone.
                return [output for item in work for output in self._run([item])]
            active, _ = work[0]
            return [self._fail(active, error)]
        outputs: list[Output | None] = []
        for active, rows in work:
            active.sequence.extend(rows.token_ids)
            if rows.num_sampled:
                outputs.append(self._accept(active, result.tokens[rows.slot][0]))
            elif active.is_complete_preview:
                outputs.append(self._finish_preview(active))
        return [output for output in outputs if output is not None]

    def _accept(self, active: _Active, token_id: int) -> Output | None:
        marks: tuple[tuple[EngineMark, int], ...] = ()
        if active.last_token is None:
            self._mark(active, EngineMark.FIRST_TOKEN)
            marks = tuple(active.marks)
        active.last_token = token_id
        if active.request.sampling.repetition_penalty != 1:
            active.chosen.append(token_id)
        reply = active.reply
        text, token_ids = reply.accept(token_id)
        if reply.finish_reason is None:
            return Output(active.id, text, token_ids, marks=marks) if text or marks else None
        del self._active[active.id]
        return Output(active.id, text, token_ids, reply.finish_reason, _usage(active), marks=marks)

    def _finish_preview(self, active: _Active) -> Output:
        del self._active[active.id]
        return Output(active.id, finish_reason=FinishReason.LENGTH, usage=_usage(active))

    def _fail(self, active: _Active, error: Exception) -> Output:
        del self._active[active.id]
        failure = EngineError(f"the language model failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return Output(active.id, error=failure)

    def _abort_all_on(self, sequence_id: SequenceId) -> None:
        for active in list(self._active.values()):
            if active.sequence.id == sequence_id:
                del self._active[active.id]
                self._cancelled.append(Output(active.id, finish_reason=FinishReason.CANCELLED))

    def _mark(self, active: _Active, name: EngineMark) -> None:
        active.marks.append((name, self._clock.now_ns()))


def _usage(active: _Active) -> Usage:
    return Usage(len(active.request.prompt), active.cached_tokens, active.reply.num_tokens)


def _rows(active: _Active, token_ids: tuple[int, ...], *, num_sampled: int) -> SequenceRows:
    return SequenceRows(
        slot=Slot(active.sequence.slot),
        token_ids=token_ids,
        first_position=len(active.sequence.token_ids),
        num_sampled=num_sampled,
        sampling=active.request.sampling,
        seed=active.seed,
        chosen=tuple(active.chosen),
    )
