"""A request to the engine, its outputs, and its state between the two."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from latency_budget.account.clock import Clock
from llm_engine.backends.base import ScoredRow, SequenceRows
from llm_engine.config import SamplingParams
from llm_engine.errors import EngineError
from llm_engine.kv_cache.kv_cache import CachedSequence, SequenceId
from llm_engine.speculative.draft_length import DraftChoice, DraftLengthPolicy
from llm_engine.speculative.drafter import Draft
from llm_engine.structured_output.compiler import GrammarMatcher

from .output import FinishReason, OutputText, Usage
from .scheduler import ScheduleInput

RequestId = NewType("RequestId", int)

_FIRST_TOKENS = 16
"""Tokens in which the first clause of a reply ends. Text is not played: without this bound a long
reply in text would keep prompts waiting to its end."""


class EngineMark(StrEnum):
    """Names of a request's instants."""

    QUEUED = "llm_queued"
    PREFILL_START = "llm_prefill_start"
    FIRST_TOKEN = "llm_first_token"


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A question to the model about a place in a prompt."""

    num_before: int
    """Tokens of the prompt before the place, at least 1. The last of them is computed anew even
    where the cache has it: the cache has no logits."""
    token_ids: tuple[int, ...]
    """Tokens of which one may follow there."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to prefill and, unless `max_tokens` is 0, to continue."""

    prompt: tuple[int, ...]
    sampling: SamplingParams
    end_ids: frozenset[int]
    max_tokens: int
    """0 prefills only: a preview, at low priority."""
    sequence: SequenceId
    deadline_ns: int | None = None
    """Deadline of the first token, monotonic ns; orders prompts that wait. A request that finds no
    room in the cache before then fails."""
    is_background: bool = False
    """True where no caller waits for it: it is served while there is nothing else to do, takes no
    pages from others, and is in no latency figure."""
    num_fixed: int = 0
    """Leading tokens of the prompt that other sequences share: pinned once they are computed."""
    score: TokenScore | None = None
    """Asks for the log-probability of these tokens: an output of its own, before the first token.
    None comes from a backend that has no logits on the host."""


@dataclass(frozen=True, slots=True)
class Output:
    """Result of a step for one request."""

    request_id: RequestId
    text: str = ""
    token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    """Set with `finish_reason`, and with the first token: the counts up to then."""
    error: EngineError | None = None
    """Set on the last output of a request that failed."""
    marks: tuple[tuple[EngineMark, int], ...] = ()
    """Instants so far, monotonic ns; set with the first token."""
    log_prob: float | None = None
    """Answer to `Request.score`; an output that has it has nothing else."""

    @property
    def is_last(self) -> bool:
        """True for the request's last output."""
        return self.finish_reason is not None or self.error is not None


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens to verify in a step, and the decision that led to them."""

    token_ids: tuple[int, ...]
    policy: DraftLengthPolicy
    choice: DraftChoice
    grade: int
    ms: float
    """Time of drafting."""


@dataclass(slots=True)
class UnverifiedDraft:
    """Draft without rows in a step, for comparison with the tokens that come."""

    token_ids: tuple[int, ...]
    policy: DraftLengthPolicy
    grade: int
    num_right: int = 0

    def compare(self, token_id: int) -> bool:
        """Compare the next token. Returns False when the comparison is over."""
        is_right = self.token_ids[self.num_right] == token_id
        self.policy.note_token(self.num_right, is_right=is_right, grade=self.grade)
        self.num_right += is_right
        return is_right and self.num_right < len(self.token_ids)


@dataclass(slots=True)
class ActiveRequest:
    """State of a request under way."""

    id: RequestId
    request: Request
    sequence: CachedSequence
    reply: OutputText
    seed: int
    cached_tokens: int
    last_served: int
    """Number of the step that last served it."""
    tokens: list[int]
    """Prompt and reply so far."""
    drafts: list[tuple[Draft, DraftLengthPolicy]]
    unverified: UnverifiedDraft | None = None
    matcher: GrammarMatcher | None = None
    """State of the reply in its grammar."""
    num_computed: int = 0
    """Tokens computed for it."""
    played_until_ns: int | None = None
    """Time at which the audio of the reply so far will have been played, monotonic ns."""
    last_token_ns: int = 0
    has_score: bool = False
    """The answer to `Request.score` was sent."""
    marks: list[tuple[EngineMark, int]] = field(default_factory=list)

    @property
    def is_preview(self) -> bool:
        return self.request.max_tokens == 0

    @property
    def num_chosen(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_missing(self) -> int:
        return len(self.tokens) - len(self.sequence.token_ids)

    @property
    def is_decoding(self) -> bool:
        """True when the next token is one row away, and is not the reply's first."""
        return self.num_chosen > 0 and self.num_missing == 1

    def is_late(self, now_ns: int) -> bool:
        """True when the first token is missing after its deadline."""
        deadline_ns = self.request.deadline_ns
        return not self.num_chosen and deadline_ns is not None and now_ns >= deadline_ns

    def schedule_input(self) -> ScheduleInput:
        """The request's work, for the scheduler."""
        return ScheduleInput(
            key=self.id,
            num_tokens=self.num_missing,
            has_begun=self.num_chosen > 0,
            is_preview=self.is_preview,
            is_background=self.request.is_background,
            due_ns=self._due_ns(),
            last_served=self.last_served,
            num_computed=self.num_computed,
            first_due_ns=self._first_due_ns(),
        )

    def _due_ns(self) -> int | None:
        """See `ScheduleInput.due_ns`. A reply that was preempted before there was audio of it has
        its prompt's deadline again."""
        is_lost = self.num_chosen > 0 and self.num_missing > 1
        if not self.num_chosen or (is_lost and self.played_until_ns is None):
            return self.request.deadline_ns
        return self.played_until_ns

    def _first_due_ns(self) -> int | None:
        is_begun = 0 < self.num_chosen <= _FIRST_TOKENS and self.played_until_ns is None
        return self.request.deadline_ns if is_begun else None

    def draft(self, clock: Clock) -> Proposal | None:
        """Ask the drafters for the next tokens: those that are due for a probe first, then those
        that promise the most. Nothing unless exactly one token is missing."""
        if not self.is_decoding or not self.drafts:
            return None
        room = self.reply.max_tokens - self.reply.num_tokens - 1
        is_masked = self.matcher is not None
        num_tokens = len(self.tokens)
        choices = [
            policy.choose(room, num_unread=draft.num_unread(num_tokens), is_masked=is_masked)
            for draft, policy in self.drafts
        ]
        asked = sorted(
            zip(choices, self.drafts, strict=True),
            key=lambda each: (not each[0].is_probe, -each[0].rate),
        )
        for choice, (draft, policy) in asked:
            if choice.length and (choice.is_verified or self.unverified is None):
                proposal = self._ask(draft, policy, choice, clock)
                if proposal is not None:
                    return proposal
        return None

    def _ask(
        self, draft: Draft, policy: DraftLengthPolicy, choice: DraftChoice, clock: Clock
    ) -> Proposal | None:
        num_tokens, start_ns = len(self.tokens), clock.now_ns()
        num_unread = draft.num_unread(num_tokens)
        proposed = tuple(draft.propose(self.tokens, choice.length))
        ms = (clock.now_ns() - start_ns) / 1e6
        num_read = num_unread if proposed else num_unread - draft.num_unread(num_tokens)
        policy.note_drafting(len(proposed), num_read, ms, is_probe=choice.is_probe)
        if self.matcher is not None:
            fitting = self.matcher.fitting(proposed)
            if proposed and not fitting:
                policy.note_forbidden(ms, grade=draft.grade)
            proposed = fitting
        if not proposed:
            return None
        num_worth = 0
        if choice.is_probe:
            num_worth = len(proposed)
        elif choice.is_verified:
            is_masked = self.matcher is not None
            num_worth = policy.num_worth(len(proposed), grade=draft.grade, is_masked=is_masked)
        if num_worth:
            return Proposal(proposed[:num_worth], policy, choice, draft.grade, ms)
        policy.note_lost(ms)
        if self.unverified is None:
            self.unverified = UnverifiedDraft(proposed, policy, draft.grade)
        return None

    def allowed(self, num_tokens: int, draft: tuple[int, ...]) -> tuple[bytes, ...]:
        """Grammar masks for `rows`: see `SequenceRows.allowed`. Raises GrammarError."""
        if self.matcher is None or num_tokens < self.num_missing:
            return ()
        return self.matcher.allowed(draft, self._num_without_end())

    def rows(
        self, num_tokens: int, draft: tuple[int, ...], allowed: tuple[bytes, ...] = ()
    ) -> SequenceRows:
        """Rows of the next step: the next tokens to compute, and drafted ones behind the last."""
        start = len(self.sequence.token_ids)
        wants_token = num_tokens == self.num_missing and not self.is_preview
        sampling = self.request.sampling
        num_prompt = len(self.request.prompt)
        return SequenceRows(
            slot=self.sequence.slot,
            token_ids=tuple(self.tokens[start : start + num_tokens]) + draft,
            first_position=start,
            num_sampled=len(draft) + 1 if wants_token else 0,
            sampling=sampling,
            seed=self.seed,
            banned=tuple(self.request.end_ids),
            num_banned=0 if allowed else self._num_without_end(),
            allowed=allowed,
            chosen=() if sampling.repetition_penalty == 1 else tuple(self.tokens[num_prompt:]),
            pages=self.sequence.table.pages,
            scored=self._scored_row(start, num_tokens),
        )

    def _scored_row(self, start: int, num_tokens: int) -> ScoredRow | None:
        """Row of these that `Request.score` asks about, if it is one of them."""
        score = self.request.score
        if score is None or self.has_score:
            return None
        index = score.num_before - 1 - start
        return ScoredRow(index, score.token_ids) if 0 <= index < num_tokens else None

    def _num_without_end(self) -> int:
        """Number of next tokens that may not end the turn (`min_tokens`, `ignore_eos`)."""
        sampling = self.request.sampling
        wanted = self.reply.max_tokens if sampling.ignore_eos else sampling.min_tokens
        return max(0, wanted - self.reply.num_tokens)

    def take(
        self, chosen: tuple[int, ...], draft: tuple[int, ...]
    ) -> tuple[str, tuple[int, ...], int]:
        """Verify the draft: take the chosen tokens up to the first that differs from it, or to the
        reply's end.

        Returns the text and ids that may be released now, and how many tokens were taken. Raises
        GrammarError where a token was chosen against the grammar.
        """
        text, num_taken = "", 0
        ids: tuple[int, ...] = ()
        for place, token_id in enumerate(chosen):
            self.tokens.append(token_id)
            num_taken += 1
            if self.unverified is not None and not self.unverified.compare(token_id):
                self.unverified = None
            is_last = False
            if self.matcher is not None:
                self.matcher.accept(token_id)
                is_last = self.matcher.is_over
            more_text, more_ids = self.reply.accept(token_id, is_last=is_last)
            text, ids = text + more_text, ids + more_ids
            is_right = place < len(draft) and draft[place] == token_id
            if self.reply.finish_reason is not None or not is_right:
                break
        return text, ids, num_taken

    def close(self) -> None:
        """Release the drafters' state."""
        for draft, _ in self.drafts:
            draft.close()

    @property
    def rank(self) -> tuple[bool, bool, bool, float, int]:
        """Sort key of preemption: requests that keep their pages longest come first; unique.

        Replies under way come before prompts that wait: they would have to compute everything anew.
        """
        is_background, is_preview, due, _ = self.schedule_input().urgency
        return is_background, is_preview, not self.num_chosen, due, self.id

    def usage(self) -> Usage:
        return Usage(len(self.request.prompt), self.cached_tokens, self.reply.num_tokens)

    def ended(self, reason: FinishReason) -> Output:
        """The last output of a request that ends outside a step."""
        return Output(self.id, finish_reason=reason, usage=self.usage())
