"""Step loop of the engine, without its thread: add and abort requests, run one step at a time.

`scheduler.schedule` chooses what a step computes; `kv_cache.KvCache` finds what of a prompt is
already cached and reserves pages for the rest; the backend computes; the chosen tokens go into the
replies. A sequence outlives its requests. Each request brings its whole prompt, and what the
sequence has cached of it is found by comparing token ids: committing a message, withdrawing one
and truncating a reply are all the same thing to the engine, another prompt.

A request's tokens are its prompt and the tokens chosen so far. Those that are not in the cache have
yet to be computed, and after the last one the next is chosen. A preempted reply, whose pages were
taken, is therefore no special case: it computes its tokens again and goes on as it would have.

*Beginnings.* Requests whose prompts begin alike, with the same instructions and tools, compute that
beginning once even if they come at the same moment: before its chunk each takes over what another
has computed of it meanwhile, so that they advance it in turns.

*Drafts.* A step that serves one reply alone may check a draft (`speculative/`): tokens that a
grammar forces, or the proposal of a drafter. Those that promise more are asked first.

Not thread-safe; the engine's thread owns it.
"""

import logging
import random
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from latency_budget.account.clock import Clock
from llm_engine.backends.base import (
    Backend,
    PageCopy,
    Plan,
    RunsInterruptibly,
    SequenceRows,
    StepHandle,
    SubBatch,
)
from llm_engine.backends.interruption import Interruption
from llm_engine.errors import (
    DeviceLostError,
    EngineError,
    GrammarError,
    RequestError,
    StepInterruptedError,
)
from llm_engine.kv_cache.block_manager import OutOfPagesError
from llm_engine.kv_cache.kv_cache import CachedSequence, KvCache, SequenceId
from llm_engine.speculative.decoding_costs import DecodingCosts
from llm_engine.speculative.draft_length import PROBE_SHARE, DraftLengthPolicy
from llm_engine.speculative.drafter import Drafter
from llm_engine.structured_output.compiler import ForcedDraft, GrammarCompiler, GrammarMatcher

from .metrics import Counters, EngineStats, snapshot
from .output import FinishReason, OutputText
from .request import ActiveRequest, EngineMark, Output, Proposal, Request, RequestId
from .scheduler import LONG_CHUNK_NS, PREVIEW_CHUNK, schedule

_log = logging.getLogger(__name__)

_FEWEST_TAKEN = PREVIEW_CHUNK
"""Tokens that another request must be ahead to be taken over from. More than a chunk: requests that
take turns never are. Fewer: a backend that copies keys and values (15 MB for 600 tokens of a
half-billion model) does so for little."""

_TOKEN_WEIGHT = 1 / 4
"""Weight of a chunk in the time of a prompt's token. Lower: a machine that others use is noticed
later. Higher: one slow chunk decides."""


@dataclass(frozen=True, slots=True)
class _PreparedRequest:
    """A request's part of a step, ready to run."""

    active: ActiveRequest
    rows: SequenceRows
    start_ns: int
    """Instant after drafting."""
    proposal: Proposal | None
    """Draft that the last rows verify."""

    @property
    def num_drafted(self) -> int:
        return 0 if self.proposal is None else len(self.proposal.token_ids)


class EngineCore:
    """Requests under way and the step that serves them."""

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
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """Among `drafters` that promise equally much, the first is asked first; without any,
        nothing is drafted, not even what a grammar forces. Without `grammars` no request may have
        one."""
        self._backend = backend
        self._grammars = grammars
        self._token_bytes = token_bytes
        self._context_length = context_length
        self._prefill_chunk = prefill_chunk
        self._clock = clock
        self._capacity = backend.layout.capacity
        self.cache = KvCache(backend, max_sequences)
        self._costs = DecodingCosts()
        share = PROBE_SHARE / (1 + len(drafters))
        self._drafters = [
            (drafter, DraftLengthPolicy(drafter.name, self._costs, probe_share=share))
            for drafter in drafters
        ]
        self._forced = DraftLengthPolicy("grammar", self._costs, acceptance=1, probe_share=share)
        self._active: dict[RequestId, ActiveRequest] = {}
        self._ids = count(1)
        self._num_steps = 0
        self._prompt_was_last = False
        self._prompt_token_ns = 0.0
        """Time of a prompt's token in a chunk, smoothed; 0 until one was measured."""
        self.interruption = Interruption()
        """Breaks off a step of background work, where the backend can."""
        self._pending: list[Output] = []
        """Last outputs of requests that ended outside a step; the next step returns them."""
        self._counters = Counters()

    def release(self) -> None:
        """Let the backend and the drafters go, with all their memory. The last call of all."""
        del self._backend
        self._drafters.clear()
        self.cache.release()

    @property
    def has_work(self) -> bool:
        """True if a step would do anything."""
        return bool(self._active or self._pending)

    def open_sequence(self) -> SequenceId:
        """Open a new, empty sequence. Raises RequestError when there are too many."""
        return self.cache.open().id

    def close_sequence(self, sequence_id: SequenceId) -> None:
        """Forget a sequence and cancel its requests. Does nothing the second time."""
        sequence = self.cache.sequences.get(sequence_id)
        if sequence is not None:
            self._end_all_on(sequence)
            self.cache.close(sequence)

    def add(self, request: Request) -> RequestId:
        """Start a request; one that still runs on the same sequence is aborted.

        Raises RequestError when the prompt is empty or can never fit, when it has no place to
        score, or for a grammar that can't be compiled.
        """
        sequence = self.cache.sequences.get(request.sequence)
        if sequence is None:
            raise RequestError("sequence", f"{request.sequence} is closed")
        room = _room(len(request.prompt), self._context_length, self._capacity)
        score = request.score
        if score is not None and not 0 < score.num_before <= len(request.prompt):
            raise RequestError("score", f"the prompt has no token {score.num_before}")
        matcher = self._begin_grammar(request)
        self._end_all_on(sequence)
        cached = self.cache.match(sequence, request.prompt[: _num_cacheable(request)])
        reply = OutputText(
            self._token_bytes,
            request.end_ids,
            request.sampling.stop,
            min(request.max_tokens, room),
        )
        drafts = [(drafter.begin(sequence.slot), policy) for drafter, policy in self._drafters]
        if drafts and matcher is not None:
            drafts.insert(0, (ForcedDraft(matcher), self._forced))
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
            drafts=drafts,
            matcher=matcher,
        )
        active.marks.append((EngineMark.QUEUED, self._clock.now_ns()))
        self._active[active.id] = active
        if not active.num_missing:
            self._end(active, active.ended(FinishReason.LENGTH))
        return active.id

    def abort(self, request_id: RequestId) -> None:
        """Drop a request without a last output. Does nothing if it is already over."""
        if request_id in self._active:
            self._release(request_id)

    def played_until(self, request_id: RequestId, at_ns: int) -> None:
        """Note until when (monotonic) the reply's audio so far plays. Ignores ended requests."""
        active = self._active.get(request_id)
        if active is not None:
            active.played_until_ns = at_ns

    def stats(self) -> EngineStats:
        """Counters so far, and what is under way."""
        replies = [
            active
            for active in self._active.values()
            if not (active.is_preview or active.request.is_background)
        ]
        return snapshot(
            self._counters,
            self.cache,
            num_waiting=sum(not active.num_chosen for active in replies),
            num_replying=sum(active.num_chosen > 0 for active in replies),
            cache_bytes=self._backend.cache_bytes(),
            drafts={each.name: replace(each.counts) for each in self._policies},
        )

    def step(self) -> list[Output]:
        """Schedule, run and account one step. Returns at once when there is nothing to do.

        A backend that raises fails the requests it raises for, as outputs; nothing is raised here.
        """
        scheduled = schedule(
            [active.schedule_input() for active in self._active.values()],
            self._clock.now_ns(),
            prefill_chunk=self._prefill_chunk,
            long_chunk=self._long_chunk(),
            prompt_was_last=self._prompt_was_last,
        )
        self._num_steps += 1
        self._prompt_was_last = False
        prepared: list[_PreparedRequest] = []
        copies: list[PageCopy] = []
        is_alone = len(scheduled) == 1
        for each in scheduled:
            active = self._active.get(RequestId(each.key))
            if active is not None:  # not a preview that was ended to make room for one before it
                copies += self._prepare(active, each.num_tokens, prepared, is_alone=is_alone)
        outputs: list[Output] = []
        if prepared:
            outputs = self._run(prepared, tuple(copies))
        for output in outputs:
            if output.is_last:
                self._release(output.request_id)
        ended, self._pending = self._pending, []
        return ended + outputs

    # --- before the step: drafts, grammar masks, pages ---

    def _prepare(
        self,
        active: ActiveRequest,
        num_tokens: int,
        prepared: list[_PreparedRequest],
        *,
        is_alone: bool,
    ) -> tuple[PageCopy, ...]:
        """Add a request's part to the step, unless there is no room for it. Returns its copies."""
        # Counts as served even without room: or replies that could make some never get a step.
        self._prompt_was_last |= not active.is_decoding and not active.is_preview
        active.last_served = self._num_steps
        start_ns = self._clock.now_ns()
        self._take_over(active)
        num_tokens = min(num_tokens, active.num_missing)
        if not num_tokens:  # a preview of nothing but that beginning
            self._end(active, active.ended(FinishReason.LENGTH))
            return ()
        spared = {active.id, *(each.active.id for each in prepared)}
        try:
            proposal = self._draft(active) if is_alone and not self._costs.is_plain_due else None
            draft = () if proposal is None else proposal.token_ids
            drafted_ns = self._clock.now_ns()
            allowed = active.allowed(num_tokens, draft)
            copies = self._reserve(active, num_tokens + len(draft), spared)
        except OutOfPagesError:
            if active.request.is_background:
                error = EngineError("the cache is full of calls: no room for background work")
                self._end(active, Output(active.id, error=error))
            elif active.is_late(self._clock.now_ns()):
                error = EngineError("the cache is full of other calls: no room before the deadline")
                self._end(active, Output(active.id, error=error))
            return ()
        except EngineError as error:
            self._end(active, Output(active.id, error=error))
            return ()
        if len(active.marks) == 1:
            active.marks.append((EngineMark.PREFILL_START, start_ns))
        rows = active.rows(num_tokens, draft, allowed)
        prepared.append(_PreparedRequest(active, rows, drafted_ns, proposal))
        return copies

    def _take_over(self, active: ActiveRequest) -> None:
        """Take over what was computed of a prompt's fixed beginning since the request came."""
        request, sequence = active.request, active.sequence
        num_shared = min(request.num_fixed, _num_cacheable(request))
        num_before = len(sequence.token_ids)
        if active.num_chosen or num_before + _FEWEST_TAKEN > num_shared:
            return
        self.cache.match(sequence, request.prompt[:num_shared])  # pinned by now
        for other in self._active.values():
            num_common = min(num_shared, other.request.num_fixed, len(other.sequence.token_ids))
            if (
                num_common >= len(sequence.token_ids) + _FEWEST_TAKEN
                and request.prompt[:num_common] == other.request.prompt[:num_common]
            ):
                self.cache.take_over(other.sequence, sequence, num_common)
        active.cached_tokens += len(sequence.token_ids) - num_before

    def _begin_grammar(self, request: Request) -> GrammarMatcher | None:
        grammar = request.sampling.grammar
        if grammar is None or request.max_tokens == 0:
            return None
        if self._grammars is None:
            raise RequestError("grammar", "this engine has no vocabulary to compile it for")
        return self._grammars.begin(grammar, request.end_ids)

    @property
    def _policies(self) -> list[DraftLengthPolicy]:
        """Draft-length policies, one for each name; none without drafters."""
        return [self._forced, *(each for _, each in self._drafters)] if self._drafters else []

    def _draft(self, active: ActiveRequest) -> Proposal | None:
        """Propose the next tokens. A drafter that raises switches all drafting off. Raises
        GrammarError where the reply can't go on."""
        try:
            return active.draft(self._clock)
        except GrammarError:
            raise
        except BaseException:  # what a library raises may be no Exception
            _log.exception("drafting failed; the engine goes on without")
            self._drafters.clear()
            for each in self._active.values():
                each.drafts.clear()
            return None

    def _reserve(
        self, active: ActiveRequest, num_tokens: int, spared: Container[RequestId]
    ) -> tuple[PageCopy, ...]:
        """Reserve pages, if need be by preempting less urgent requests. Raises OutOfPagesError."""
        if active.request.is_background:
            return self.cache.reserve(active.sequence, num_tokens, may_evict=False)
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
            victim.num_computed = 0  # it is lost, and no reason to come later
        return True

    # --- the step, and what it chose ---

    def _run(
        self,
        work: Sequence[_PreparedRequest],
        copies: tuple[PageCopy, ...],
        *,
        is_retry: bool = False,
    ) -> list[Output]:
        """Run one plan on the backend. One that raises fails the requests it raises for, as
        outputs."""
        self._counters.note_pages(self.cache.pool.num_used, self.cache.pool.num_pages)
        replies = tuple(each.rows for each in work if each.active.is_decoding)
        prompts = tuple(each.rows for each in work if not each.active.is_decoding)
        sub_batches = tuple(SubBatch(rows) for rows in (replies, prompts) if rows)
        try:
            result = self._backend.collect(self._launch(work, Plan(sub_batches, copies)))
        except StepInterruptedError:
            return []
        except BaseException as error:  # `sys.exit` in a library raises SystemExit
            if len(work) > 1 and not isinstance(error, DeviceLostError):
                # Which request is at fault? Positions make a step repeatable: run them alone.
                alone = [
                    self._run([each], _copies_for(each.rows, copies), is_retry=True)
                    for each in work
                ]
                return [output for outputs in alone for output in outputs]
            if copies:  # perhaps not made: the pages may hold another sequence's keys
                for each in work:
                    self.cache.forget(each.active.sequence)
            return [_failed(each.active, error) for each in work]
        if len(work) == 1 and not is_retry:
            self._note_cost(work[0])
        outputs: list[Output | None] = []
        for each in work:
            active, rows = each.active, each.rows
            if rows.scored is not None and rows.slot in result.log_probs:
                active.has_score = True
                outputs.append(Output(active.id, log_prob=result.log_probs[rows.slot]))
            if rows.num_sampled:
                try:
                    outputs.append(self._accept(each, result.tokens[rows.slot]))
                except EngineError as error:
                    outputs.append(Output(active.id, error=error))
                continue
            self._extend(active, rows.token_ids)
            if active.is_preview and not active.num_missing:
                outputs.append(active.ended(FinishReason.LENGTH))
        return [output for output in outputs if output is not None]

    def _launch(self, work: Sequence[_PreparedRequest], plan: Plan) -> StepHandle:
        backend = self._backend
        is_background = all(each.active.request.is_background for each in work)
        if is_background and isinstance(backend, RunsInterruptibly):
            return backend.launch_interruptible(plan, self.interruption)
        return backend.launch(plan)

    def _note_cost(self, step: _PreparedRequest) -> None:
        num_rows = len(step.rows.token_ids)
        ns = self._clock.now_ns() - step.start_ns
        if step.active.is_decoding:
            self._costs.note_step(num_rows, ns / 1e6, is_masked=bool(step.rows.allowed))
        elif num_rows >= PREVIEW_CHUNK:
            before = self._prompt_token_ns or ns / num_rows
            self._prompt_token_ns = before + (ns / num_rows - before) * _TOKEN_WEIGHT

    def _long_chunk(self) -> int:
        """Tokens of a long prompt that fit a chunk of `LONG_CHUNK_NS`, as far as that is known."""
        if not self._prompt_token_ns:
            return self._prefill_chunk
        num_tokens = max(PREVIEW_CHUNK, int(LONG_CHUNK_NS / self._prompt_token_ns))
        return min(self._prefill_chunk, num_tokens)

    def _extend(self, active: ActiveRequest, token_ids: tuple[int, ...]) -> None:
        """Account computed tokens; pin the fixed prefix once all of it is computed."""
        sequence, num_fixed = active.sequence, active.request.num_fixed
        active.num_computed += len(token_ids)
        before = len(sequence.token_ids)
        sequence.extend(token_ids)
        if before < num_fixed <= len(sequence.token_ids):
            self.cache.pin(sequence, num_fixed)

    def _accept(self, step: _PreparedRequest, chosen: tuple[int, ...]) -> Output | None:
        """Take the chosen tokens into the reply, as far as the draft was right."""
        active, token_ids = step.active, step.rows.token_ids
        marks: tuple[tuple[EngineMark, int], ...] = ()
        now_ns = self._clock.now_ns()
        is_first = not active.num_chosen
        draft = token_ids[len(token_ids) - step.num_drafted :]
        text, ids, num_taken = active.take(chosen, draft)
        self._extend(active, token_ids[: len(token_ids) - len(draft) + num_taken - 1])
        reason = active.reply.finish_reason
        if is_first:
            active.marks.append((EngineMark.FIRST_TOKEN, now_ns))
            marks = tuple(active.marks)
        if active.request.is_background:
            pass
        elif is_first:
            self._counters.count_first_token(marks, active.usage())
        else:
            self._counters.count_next_tokens(num_taken, now_ns - active.last_token_ns)
        active.last_token_ns = now_ns
        if step.proposal is not None:
            checked = draft if reason is None else draft[: num_taken - 1]
            step.proposal.policy.note_draft(checked, num_taken - 1, grade=step.proposal.grade)
            if step.proposal.choice.is_probe:
                self._charge(step.proposal, num_taken, (now_ns - step.start_ns) / 1e6)
        if reason is None:
            usage = active.usage() if is_first else None
            return Output(active.id, text, ids, usage=usage, marks=marks) if text or marks else None
        return Output(active.id, text, ids, reason, active.usage(), marks=marks)

    def _charge(self, probe: Proposal, num_taken: int, step_ms: float) -> None:
        """Charge the drafter for the time that its probe took beyond that of the decision it
        replaced."""
        usual_ms = num_taken * self._costs.plain_ms / probe.choice.rate
        probe.policy.note_lost(probe.ms + step_ms - usual_ms)

    def _end_all_on(self, sequence: CachedSequence) -> None:
        for active in list(self._active.values()):
            if active.sequence is sequence:
                self._end(active, Output(active.id, finish_reason=FinishReason.CANCELLED))

    def _end(self, active: ActiveRequest, output: Output) -> None:
        """End a request outside a step; the next step returns its last output."""
        self._release(active.id)
        self._pending.append(output)

    def _release(self, request_id: RequestId) -> None:
        active = self._active.pop(request_id)
        active.close()
        if active.num_chosen:
            self._costs.note_reply(active.num_chosen)


def _num_cacheable(request: Request) -> int:
    """Leading tokens of a prompt that may come from the cache: it has no logits, so those after
    which some are wanted must be computed."""
    num_cacheable = len(request.prompt) - (request.max_tokens > 0)
    if request.score is not None:
        num_cacheable = min(num_cacheable, request.score.num_before - 1)
    return num_cacheable


def _failed(active: ActiveRequest, error: BaseException) -> Output:
    if isinstance(error, DeviceLostError):
        return Output(active.id, error=error)
    failure = EngineError(f"the language model failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return Output(active.id, error=failure)


def _copies_for(rows: SequenceRows, copies: Iterable[PageCopy]) -> tuple[PageCopy, ...]:
    return tuple(copy for copy in copies if copy.target in rows.pages)


def _room(num_prompt: int, context_length: int, capacity: int) -> int:
    """Most tokens that a reply to such a prompt may have. Raises RequestError for none at all."""
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
