"""Running a step: what was prepared goes to the backend, and what comes back into the replies."""

from collections.abc import Iterable, Sequence

from latency_budget.account.clock import Clock
from llm_engine.backends.base import Backend, PageCopy, Plan, SequenceRows, SubBatch
from llm_engine.errors import DeviceLostError, EngineError
from llm_engine.kv_cache.kv_cache import KvCache
from llm_engine.speculative.draft_length import Speculation

from .metrics import Counters
from .output import FinishReason
from .request import ActiveRequest, EngineMark, Output, Prepared


class StepExecutor:
    """Belongs to the engine's thread."""

    def __init__(self, backend: Backend, cache: KvCache, counters: Counters, clock: Clock) -> None:
        self._backend = backend
        self._cache = cache
        self._counters = counters
        self._clock = clock

    def run(
        self,
        work: Sequence[Prepared],
        copies: tuple[PageCopy, ...],
        speculations: Iterable[Speculation],
    ) -> list[Output]:
        """One step. A backend that raises fails the requests it raises for, as outputs.

        `speculations` are told how long a step of one reply took.
        """
        self._counters.note_pages(self._cache.pool.num_used, self._cache.pool.num_pages)
        replies = tuple(each.rows for each in work if each.active.is_decoding)
        prompts = tuple(each.rows for each in work if not each.active.is_decoding)
        sub_batches = tuple(SubBatch(rows) for rows in (replies, prompts) if rows)
        try:
            result = self._backend.collect(self._backend.launch(Plan(sub_batches, copies)))
        except Exception as error:
            if len(work) > 1 and not isinstance(error, DeviceLostError):
                # Which request is at fault? Positions make a step repeatable: run them alone.
                alone = [self.run([each], _copies_for(each.rows, copies), ()) for each in work]
                return [output for outputs in alone for output in outputs]
            return [_failed(each.active, error) for each in work]
        if len(work) == 1:
            self._note_cost(work[0], speculations)
        outputs: list[Output | None] = []
        for each in work:
            active, rows = each.active, each.rows
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

    def _note_cost(self, step: Prepared, speculations: Iterable[Speculation]) -> None:
        num_rows = len(step.rows.token_ids)
        if num_rows - step.num_drafted > 1:
            return  # a prompt
        ms = (self._clock.now_ns() - step.start_ns) / 1e6
        for speculation in speculations:
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
        reason = active.reply.finish_reason
        if is_first:
            active.marks.append((EngineMark.FIRST_TOKEN, now_ns))
            marks = tuple(active.marks)
            self._counters.count_first_token(marks, active.usage())
        else:
            self._counters.count_next_tokens(num_taken, now_ns - active.last_token_ns)
        active.last_token_ns = now_ns
        if step.speculation is not None:
            checked = draft if reason is None else draft[: num_taken - 1]
            step.speculation.note_draft(checked, num_taken - 1)
        if reason is None:
            usage = active.usage() if is_first else None
            return Output(active.id, text, ids, usage=usage, marks=marks) if text or marks else None
        return Output(active.id, text, ids, reason, active.usage(), marks=marks)


def _failed(active: ActiveRequest, error: Exception) -> Output:
    if isinstance(error, DeviceLostError):
        return Output(active.id, error=error)
    failure = EngineError(f"the language model failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return Output(active.id, error=failure)


def _copies_for(rows: SequenceRows, copies: Iterable[PageCopy]) -> tuple[PageCopy, ...]:
    return tuple(copy for copy in copies if copy.target in rows.pages)
