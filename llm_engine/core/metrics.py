"""Counters of an engine, and a snapshot of them for /metrics."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from latency_budget.statistics.histogram import Histogram
from llm_engine.kv_cache.kv_cache import KvCache
from llm_engine.speculative.draft_length import DraftCounts

from .output import Usage

_log = logging.getLogger(__name__)

NEARLY_FULL = 0.85
"""Share of pages in use at which the log warns: beyond it idle conversations are forgotten soon,
and their next turn computes everything anew."""
NO_LONGER_FULL = 0.7
"""Share at which the next warning becomes possible again."""


@dataclass(slots=True)
class Counters:
    """Counters and histograms since the engine's start. Belongs to the engine's thread."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens taken from the cache."""
    output_tokens: int = 0
    num_preempted: int = 0
    """Replies whose pages were taken, and which computed them again later."""
    queue: Histogram = field(default_factory=Histogram)
    """Time from a request's arrival to its first step, ms."""
    first_token: Histogram = field(default_factory=Histogram)
    """Time from a request's arrival to its first token (TTFT), ms."""
    between_tokens: Histogram = field(default_factory=Histogram)
    """Time between two tokens of a reply (ITL), ms."""
    _is_nearly_full: bool = False

    def count_first_token(self, marks: Sequence[tuple[str, int]], usage: Usage) -> None:
        """Count a first token: its instants (arrival, first step, first token) and its prompt."""
        queued_ns, begun_ns, token_ns = (at_ns for _, at_ns in marks)
        self.queue.record((begun_ns - queued_ns) / 1e6)
        self.first_token.record((token_ns - queued_ns) / 1e6)
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.output_tokens += 1

    def count_next_tokens(self, num_tokens: int, since_last_ns: int) -> None:
        """Count a later step's tokens of a reply."""
        self.between_tokens.record(since_last_ns / num_tokens / 1e6, num_tokens)
        self.output_tokens += num_tokens

    def note_pages(self, used: int, total: int) -> None:
        """Warn once when the cache gets full."""
        if used > NEARLY_FULL * total and not self._is_nearly_full:
            self._is_nearly_full = True
            _log.warning("%d of %d pages of the cache are in use", used, total)
        elif used < NO_LONGER_FULL * total:
            self._is_nearly_full = False


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Snapshot of an engine."""

    num_sequences: int
    num_waiting: int
    """Requests without a first token, previews not counted."""
    num_replying: int
    pages_total: int
    pages_used: int
    pages_high_water: int
    page_tokens: int
    """Tokens in a page."""
    cache_bytes: int
    num_evicted: int
    """Idle conversations evicted because the cache was full."""
    num_preempted: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_ms: Histogram
    first_token_ms: Histogram
    between_tokens_ms: Histogram
    drafts: Mapping[str, DraftCounts]
    """Counts by the drafter's name."""


def snapshot(
    counters: Counters,
    cache: KvCache,
    *,
    num_waiting: int,
    num_replying: int,
    cache_bytes: int,
    drafts: Mapping[str, DraftCounts],
) -> EngineStats:
    """Copy the counters into a snapshot."""
    return EngineStats(
        num_sequences=len(cache.sequences),
        num_waiting=num_waiting,
        num_replying=num_replying,
        pages_total=cache.pool.num_pages,
        pages_used=cache.pool.num_used,
        pages_high_water=cache.pool.high_water,
        page_tokens=cache.page_tokens,
        cache_bytes=cache_bytes,
        num_evicted=cache.num_evicted,
        num_preempted=counters.num_preempted,
        prompt_tokens=counters.prompt_tokens,
        cached_tokens=counters.cached_tokens,
        output_tokens=counters.output_tokens,
        queue_ms=counters.queue.copy(),
        first_token_ms=counters.first_token.copy(),
        between_tokens_ms=counters.between_tokens.copy(),
        drafts=drafts,
    )
