"""The engine without its thread: add and abort requests, and run them a step at a time.

`llm_engine.scheduler` decides who gets a step, `llm_engine.cache` what of a prompt is already known
and where the rest goes. A sequence outlives its requests. Each request brings its whole prompt;
what the sequence has cached of it is found by comparing token ids, so that committing, changing
one's mind and being cut off are all the same thing to the engine: another prompt.

A request's tokens are its prompt and what was chosen so far. Whatever of them is not in the cache
has yet to be computed, and after the last one the next is chosen. A reply that had to give up its
pages is therefore no special case: it computes its tokens anew, and goes on as it would have.

Not thread-safe; the engine's thread owns it.
"""

import random
from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import count

from latency_budget.account.clock import Clock
from llm_engine.backends.base import Backend, PageCopy
from llm_engine.errors import EngineError, RequestError
from llm_engine.kv_cache.block_manager import OutOfPagesError
from llm_engine.kv_cache.kv_cache import KvCache
from llm_engine.kv_cache.sequence import CachedSequence, SequenceId
from llm_engine.speculative.draft_length import Speculation
from llm_engine.speculative.ngram import Drafter

from .draft_dispatch import Drafting
from .metrics import Counters, EngineStats, snapshot
from .output import FinishReason, OutputText
from .request import ActiveRequest, EngineMark, Output, Prepared, Request, RequestId
from .scheduler import schedule
from .step_executor import StepExecutor
from .structured_output import Constraints, Matcher


class EngineCore:
    """Requests and the step. See the module's text."""

    def __init__(
        self,
        backend: Backend,
        token_bytes: tuple[bytes, ...],
        *,
        context_length: int,
        prefill_chunk: int,
        max_sequences: int,
        clock: Clock,
        drafters: Sequence[Drafter] = (),
        constraints: Constraints | None = None,
    ) -> None:
        """`drafters` are asked in this order, until one has an idea; before them, if there are any,
        a reply's grammar. Without `constraints` no reply may have one."""
        self._backend = backend
        self._constraints = constraints
        self._token_bytes = token_bytes
        self._context_length = context_length
        self._prefill_chunk = prefill_chunk
        self._clock = clock
        self._capacity = backend.layout.capacity
        self.cache = KvCache(backend, max_sequences)
        self._drafting = Drafting(drafters)
        self._active: dict[RequestId, ActiveRequest] = {}
        self._ids = count(1)
        self._num_steps = 0
        self._prompt_was_last = False
        self._pending: list[Output] = []
        """Ends of requests outside a step, to be told by the next one."""
        self._counters = Counters()
        self._runner = StepExecutor(backend, self.cache, self._counters, clock)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._active or self._pending)

    def open_sequence(self) -> SequenceId:
        """A new, empty sequence. Raises RequestError when there are too many."""
        return self.cache.open().id

    def close_sequence(self, sequence_id: SequenceId) -> None:
        """Forget a sequence and what still runs on it. Does nothing the second time."""
        sequence = self.cache.sequences.get(sequence_id)
        if sequence is not None:
            self._end_all_on(sequence)
            self.cache.close(sequence)

    def add(self, request: Request) -> RequestId:
        """Take on a request; one that still runs on the same sequence is aborted.

        Raises RequestError when the prompt is empty or can never fit, or for a grammar that can't
        be compiled.
        """
        sequence = self.cache.sequences.get(request.sequence)
        if sequence is None:
            raise RequestError("sequence", f"{request.sequence} is closed")
        room = _room(len(request.prompt), self._context_length, self._capacity)
        matcher = self._begin_grammar(request)
        self._end_all_on(sequence)
        cached = self.cache.match(sequence, request.prompt, is_preview=request.max_tokens == 0)
        reply = OutputText(
            self._token_bytes,
            request.end_ids,
            request.sampling.stop,
            min(request.max_tokens, room),
        )
        seed = request.sampling.seed
        active = ActiveRequest(
            id=RequestId(next(self._ids)),
            request=request,
            sequence=sequence,
            reply=reply,
            seed=random.SystemRandom().getrandbits(63) if seed is None else seed,
            cached_tokens=cached,
            last_served=self._num_steps,
            tokens=list(request.prompt),
            drafts=self._drafting.begin(sequence.slot, matcher),
            matcher=matcher,
        )
        active.marks.append((EngineMark.QUEUED, self._clock.now_ns()))
        self._active[active.id] = active
        if not active.num_missing:
            self._end(active, active.ended(FinishReason.LENGTH))
        return active.id

    def abort(self, request_id: RequestId) -> None:
        """Nothing more will come of this request. Does nothing if it is already over."""
        active = self._active.pop(request_id, None)
        if active is not None:
            active.close()

    def played_until(self, request_id: RequestId, at_ns: int) -> None:
        """The reply so far keeps its listener busy until then. Ignores requests that are over."""
        active = self._active.get(request_id)
        if active is not None:
            active.played_until_ns = at_ns

    def stats(self) -> EngineStats:
        """What has been counted, and what is under way."""
        callers = [active for active in self._active.values() if not active.is_preview]
        return snapshot(
            self._counters,
            self.cache,
            num_waiting=sum(not active.num_chosen for active in callers),
            num_replying=sum(active.num_chosen > 0 for active in callers),
            cache_bytes=self._backend.cache_bytes(),
            drafts={each.name: replace(each.counts) for each in self._drafting.speculations},
        )

    def step(self) -> list[Output]:
        """Run one plan. Returns at once when there is nothing to do.

        A backend that raises fails the requests it raises for, as outputs; nothing is raised here.
        """
        jobs = schedule(
            [active.work() for active in self._active.values()],
            self._clock.now_ns(),
            prefill_chunk=self._prefill_chunk,
            prompt_was_last=self._prompt_was_last,
        )
        self._num_steps += 1
        self._prompt_was_last = False
        prepared: list[Prepared] = []
        copies: list[PageCopy] = []
        for job in jobs:
            active = self._active.get(RequestId(job.key))
            if active is not None:  # not a preview that made room for a job before it
                copies += self._prepare(active, job.num_tokens, prepared, is_alone=len(jobs) == 1)
        outputs: list[Output] = []
        if prepared:
            outputs = self._runner.run(prepared, tuple(copies), self._drafting.speculations)
        for output in outputs:
            if output.is_last:
                self._active.pop(output.request_id).close()
        ended, self._pending = self._pending, []
        return ended + outputs

    def _prepare(
        self, active: ActiveRequest, num_tokens: int, prepared: list[Prepared], *, is_alone: bool
    ) -> tuple[PageCopy, ...]:
        """Add a request's part to the step, unless there is no room for it. Returns its copies."""
        # Its turn, even if there is no room: or replies that could make some never get one.
        self._prompt_was_last |= not active.is_decoding and not active.is_preview
        active.last_served = self._num_steps
        start_ns = self._clock.now_ns()
        speculation: Speculation | None = None
        draft: tuple[int, ...] = ()
        if is_alone:
            speculation, draft = self._drafting.draft(active, self._active.values())
        spared = {active.id, *(each.active.id for each in prepared)}
        try:
            allowed = active.allowed(num_tokens, draft)
            copies = self._reserve(active, num_tokens + len(draft), spared)
        except OutOfPagesError:
            if active.is_late(self._clock.now_ns()):
                error = EngineError("the cache is full of other calls: no room before the deadline")
                self._end(active, Output(active.id, error=error))
            return ()
        except EngineError as error:
            self._end(active, Output(active.id, error=error))
            return ()
        if len(active.marks) == 1:
            active.marks.append((EngineMark.PREFILL_START, start_ns))
        rows = active.rows(num_tokens, draft, allowed)
        prepared.append(Prepared(active, rows, start_ns, speculation, len(draft)))
        return copies

    def _begin_grammar(self, request: Request) -> Matcher | None:
        grammar = request.sampling.grammar
        if grammar is None or request.max_tokens == 0:
            return None
        if self._constraints is None:
            raise RequestError("grammar", "this engine has no vocabulary to compile it for")
        return self._constraints.begin(grammar, request.end_ids)

    def _reserve(
        self, active: ActiveRequest, num_tokens: int, spared: Container[RequestId]
    ) -> tuple[PageCopy, ...]:
        """Make room, if need be at the cost of less urgent requests. Raises OutOfPagesError."""
        busy = {each.sequence.id for each in self._active.values()}
        while True:
            try:
                return self.cache.reserve(active.sequence, num_tokens, busy)
            except OutOfPagesError:
                if not self._preempt(active, spared):
                    raise

    def _preempt(self, active: ActiveRequest, spared: Container[RequestId]) -> bool:
        """Take the pages of the least urgent request that has any. False when there is none."""
        victims = [
            each
            for each in self._active.values()
            if each.id not in spared and each.sequence.token_ids and each.rank > active.rank
        ]
        if not victims:
            return False
        victim = max(victims, key=lambda each: each.rank)
        self.cache.forget(victim.sequence)
        if victim.is_preview:
            self._end(victim, victim.ended(FinishReason.CANCELLED))
        else:
            self._counters.num_preempted += 1
        return True

    def _end_all_on(self, sequence: CachedSequence) -> None:
        for active in list(self._active.values()):
            if active.sequence is sequence:
                self._end(active, Output(active.id, finish_reason=FinishReason.CANCELLED))

    def _end(self, active: ActiveRequest, output: Output) -> None:
        """It is over without a step; the next one tells."""
        self._active.pop(active.id).close()
        self._pending.append(output)


def _room(num_prompt: int, context_length: int, capacity: int) -> int:
    """Tokens that a reply to such a prompt may have. Raises RequestError for none at all."""
    if num_prompt == 0:
        raise RequestError("prompt", "is empty")
    if num_prompt >= context_length:
        raise RequestError(
            "prompt",
            f"has {num_prompt} tokens; the context holds {context_length}, and at least one is "
            "needed for the answer",
        )
    if num_prompt >= capacity:
        raise RequestError(
            "prompt",
            f"has {num_prompt} tokens; the cache holds {capacity} in all. Raise kv_cache_mb",
        )
    return min(context_length, capacity) - num_prompt
