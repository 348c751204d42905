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

import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

from latency_budget.clock import Clock
from llm_engine.backends.base import Backend, PageCopy, Plan, SequenceRows, SubBatch
from llm_engine.cache import KvCache
from llm_engine.drafts import Drafter
from llm_engine.errors import EngineError, RequestError
from llm_engine.metrics import Counters, EngineStats
from llm_engine.pages import OutOfPagesError
from llm_engine.reply import FinishReason, GrowingReply
from llm_engine.requests import (
    ActiveRequest,
    EngineMark,
    Output,
    Prepared,
    Request,
    RequestId,
)
from llm_engine.scheduler import schedule
from llm_engine.sequence import CachedSequence, SequenceId
from llm_engine.speculation import Speculation

_log = logging.getLogger(__name__)


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
    ) -> None:
        """`drafters` are asked in this order, until one has an idea."""
        self._backend = backend
        self._token_bytes = token_bytes
        self._context_length = context_length
        self._prefill_chunk = prefill_chunk
        self._clock = clock
        self._cache = KvCache(backend, max_sequences)
        self._drafters = [(drafter, Speculation(drafter.name)) for drafter in drafters]
        self._active: dict[RequestId, ActiveRequest] = {}
        self._ids = count(1)
        self._num_steps = 0
        self._prompt_was_last = False
        self._pending: list[Output] = []
        """Ends of requests outside a step, to be told by the next one."""
        self._counters = Counters()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._active or self._pending)

    def open_sequence(self) -> SequenceId:
        """A new, empty sequence. Raises RequestError when there are too many."""
        return self._cache.open().id

    def close_sequence(self, sequence_id: SequenceId) -> None:
        """Forget a sequence and what still runs on it. Does nothing the second time."""
        sequence = self._cache.get(sequence_id)
        if sequence is not None:
            self._abort_all_on(sequence)
            self._cache.close(sequence)

    def add(self, request: Request) -> RequestId:
        """Take on a request; one that still runs on the same sequence is aborted.

        Raises RequestError when the prompt is empty or can never fit.
        """
        sequence = self._cache.get(request.sequence)
        if sequence is None:
            raise RequestError("sequence", f"{request.sequence} is closed")
        room = self._room(len(request.prompt))
        self._abort_all_on(sequence)
        cached = self._cache.match(sequence, request.prompt, is_preview=request.max_tokens == 0)
        reply = GrowingReply(
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
            drafts=[(drafter.begin(), speculation) for drafter, speculation in self._drafters],
        )
        self._mark(active, EngineMark.QUEUED)
        if active.num_missing:
            self._active[active.id] = active
        else:
            self._pending.append(active.ended(FinishReason.LENGTH))
            active.close()
        return active.id

    def abort(self, request_id: RequestId) -> None:
        """Nothing more will come of this request. Does nothing if it is already over."""
        active = self._active.get(request_id)
        if active is not None:
            self._remove(active)

    def played_until(self, request_id: RequestId, at_ns: int) -> None:
        """The reply so far keeps its listener busy until then. Ignores requests that are over."""
        active = self._active.get(request_id)
        if active is not None:
            active.played_until_ns = at_ns

    def stats(self) -> EngineStats:
        """What has been counted, and what is under way."""
        counters, pool = self._counters, self._cache.pool
        callers = [active for active in self._active.values() if not active.is_preview]
        num_replying = sum(active.num_chosen > 0 for active in callers)
        return EngineStats(
            num_sequences=self._cache.num_sequences,
            num_waiting=len(callers) - num_replying,
            num_replying=num_replying,
            pages_total=pool.num_pages,
            pages_used=pool.num_used,
            pages_high_water=pool.high_water,
            cache_bytes=self._backend.cache_bytes(),
            num_evicted=self._cache.num_evicted,
            num_preempted=counters.num_preempted,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            output_tokens=counters.output_tokens,
            queue_ms=counters.queue.copy(),
            first_token_ms=counters.first_token.copy(),
            between_tokens_ms=counters.between_tokens.copy(),
            drafts={each.name: replace(each.counts) for _, each in self._drafters},
        )

    def check(self) -> None:
        """Raise AssertionError unless every page is accounted for."""
        self._cache.check()

    def forget_everything(self) -> None:
        """Empty the cache; sequences stay open. Only while nothing is under way."""
        assert not self._active
        self._cache.forget_everything()

    def step(self) -> list[Output]:
        """Run one plan. Returns at once when there is nothing to do.

        A backend that raises fails the requests it raises for, as outputs; nothing is raised here.
        """
        outputs, self._pending = self._pending, []
        jobs = schedule(
            [active.work() for active in self._active.values()],
            self._clock.now_ns(),
            prefill_chunk=self._prefill_chunk,
            prompt_was_last=self._prompt_was_last,
        )
        self._num_steps += 1
        self._prompt_was_last = False
        is_alone = len(jobs) == 1
        prepared: list[Prepared] = []
        copies: list[PageCopy] = []
        for job in jobs:
            active = self._active.get(RequestId(job.key))
            if active is None:
                continue  # a preview that made room for a job before it
            # Its turn, even if there is no room: or replies that could make some never get one.
            self._prompt_was_last |= not active.is_decoding and not active.is_preview
            active.last_served = self._num_steps
            start_ns = self._clock.now_ns()
            speculation, draft = self._draft(active) if is_alone else (None, ())
            try:
                num_rows = job.num_tokens + len(draft)
                copies += self._reserve(active, num_rows, [each.active for each in prepared])
            except OutOfPagesError:
                outputs += self._fail_if_late(active)
                continue
            if len(active.marks) == 1:
                self._mark(active, EngineMark.PREFILL_START)
            rows = active.rows(job.num_tokens, draft)
            prepared.append(Prepared(active, rows, start_ns, speculation, len(draft)))
        if prepared:
            self._counters.note_pages(self._cache.pool.num_used, self._cache.pool.num_pages)
            outputs += self._run(prepared, tuple(copies))
        ended, self._pending = self._pending, []
        return outputs + ended

    def _draft(self, active: ActiveRequest) -> tuple[Speculation | None, tuple[int, ...]]:
        """What may come next. A drafter that raises is not asked again."""
        try:
            return active.draft()
        except Exception:
            _log.exception("drafting failed; the engine goes on without")
            self._drafters.clear()
            for each in self._active.values():
                each.drafts.clear()
            return None, ()

    def _room(self, num_prompt: int) -> int:
        """Tokens that a reply to such a prompt may have. Raises RequestError for none at all."""
        if num_prompt == 0:
            raise RequestError("prompt", "is empty")
        if num_prompt >= self._context_length:
            raise RequestError(
                "prompt",
                f"has {num_prompt} tokens; the context holds {self._context_length}, and at least "
                "one is needed for the answer",
            )
        if num_prompt >= self._cache.capacity:
            raise RequestError(
                "prompt",
                f"has {num_prompt} tokens; the cache holds {self._cache.capacity} in all. "
                "Raise kv_cache_mb",
            )
        return min(self._context_length, self._cache.capacity) - num_prompt

    def _reserve(
        self, active: ActiveRequest, num_tokens: int, prepared: Iterable[ActiveRequest]
    ) -> tuple[PageCopy, ...]:
        """Make room, if need be at the cost of less urgent requests. Raises OutOfPagesError."""
        busy = {each.sequence.id for each in self._active.values()}
        while True:
            try:
                return self._cache.reserve(active.sequence, num_tokens, busy)
            except OutOfPagesError:
                if not self._preempt(active, prepared):
                    raise

    def _preempt(self, active: ActiveRequest, prepared: Iterable[ActiveRequest]) -> bool:
        """Take the pages of the least urgent request that has any. False when there is none."""
        spared = {active.id, *(each.id for each in prepared)}
        victims = [
            each
            for each in self._active.values()
            if each.id not in spared and each.sequence.token_ids and each.rank > active.rank
        ]
        if not victims:
            return False
        victim = max(victims, key=lambda each: each.rank)
        self._cache.forget(victim.sequence)
        if victim.is_preview:
            self._remove(victim)
            self._pending.append(victim.ended(FinishReason.CANCELLED))
        else:
            self._counters.num_preempted += 1
        return True

    def _fail_if_late(self, active: ActiveRequest) -> list[Output]:
        deadline_ns = active.request.deadline_ns
        if active.num_chosen or deadline_ns is None or self._clock.now_ns() < deadline_ns:
            return []
        self._remove(active)
        error = EngineError("the cache is full of other calls: no room before the deadline")
        return [Output(active.id, error=error)]

    def _run(self, work: list[Prepared], copies: tuple[PageCopy, ...]) -> list[Output]:
        replies = tuple(each.rows for each in work if each.active.is_decoding)
        prompts = tuple(each.rows for each in work if not each.active.is_decoding)
        sub_batches = tuple(SubBatch(rows) for rows in (replies, prompts) if rows)
        try:
            result = self._backend.collect(self._backend.launch(Plan(sub_batches, copies)))
        except Exception as error:
            if len(work) > 1:
                # Which request is at fault? Positions make a step repeatable: run them alone.
                alone = [self._run([each], _copies_for(each.rows, copies)) for each in work]
                return [output for outputs in alone for output in outputs]
            return [self._fail(work[0].active, error)]
        if len(work) == 1:
            self._note_cost(work[0])
        outputs: list[Output | None] = []
        for each in work:
            active, rows = each.active, each.rows
            if rows.num_sampled:
                outputs.append(self._accept(each, result.tokens[rows.slot]))
                continue
            self._extend(active, rows.token_ids)
            if active.is_preview and not active.num_missing:
                self._remove(active)
                outputs.append(active.ended(FinishReason.LENGTH))
        return [output for output in outputs if output is not None]

    def _note_cost(self, step: Prepared) -> None:
        """Tell those who choose draft lengths how long a step of one reply took."""
        num_rows = len(step.rows.token_ids)
        if num_rows - step.num_drafted > 1:
            return  # a prompt
        ms = (self._clock.now_ns() - step.start_ns) / 1e6
        for _, speculation in self._drafters:
            if step.speculation in (None, speculation):
                speculation.note_step(num_rows, ms)

    def _extend(self, active: ActiveRequest, token_ids: tuple[int, ...]) -> None:
        sequence, num_fixed = active.sequence, active.request.num_fixed
        before = len(sequence.token_ids)
        sequence.extend(token_ids)
        if before < num_fixed <= len(sequence.token_ids):
            self._cache.pin(sequence, num_fixed)

    def _accept(self, step: Prepared, chosen: tuple[int, ...]) -> Output | None:
        active, token_ids = step.active, step.rows.token_ids
        marks: tuple[tuple[EngineMark, int], ...] = ()
        now_ns = self._clock.now_ns()
        is_first = not active.num_chosen
        draft = token_ids[len(token_ids) - step.num_drafted :]
        text, ids, num_taken = active.take(chosen, draft)
        self._extend(active, token_ids[: len(token_ids) - len(draft) + num_taken - 1])
        if is_first:
            self._mark(active, EngineMark.FIRST_TOKEN)
            marks = tuple(active.marks)
            self._counters.count_first_token(marks, active.usage())
        else:
            self._counters.count_next_tokens(num_taken, now_ns - active.last_token_ns)
        if step.speculation is not None:
            is_over = active.reply.finish_reason is not None
            step.speculation.note_draft(draft[: num_taken - 1] if is_over else draft, num_taken - 1)
        active.last_token_ns = now_ns
        reason = active.reply.finish_reason
        if reason is None:
            return Output(active.id, text, ids, marks=marks) if text or marks else None
        self._remove(active)
        return Output(active.id, text, ids, reason, active.usage(), marks=marks)

    def _fail(self, active: ActiveRequest, error: Exception) -> Output:
        self._remove(active)
        failure = EngineError(f"the language model failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return Output(active.id, error=failure)

    def _abort_all_on(self, sequence: CachedSequence) -> None:
        for active in list(self._active.values()):
            if active.sequence is sequence:
                self._remove(active)
                self._pending.append(Output(active.id, finish_reason=FinishReason.CANCELLED))

    def _remove(self, active: ActiveRequest) -> None:
        del self._active[active.id]
        active.close()

    def _mark(self, active: ActiveRequest, name: EngineMark) -> None:
        active.marks.append((name, self._clock.now_ns()))


def _copies_for(rows: SequenceRows, copies: Iterable[PageCopy]) -> tuple[PageCopy, ...]:
    return tuple(copy for copy in copies if copy.target in rows.pages)
