"""Step scheduler: continuous batching with chunked prefill. Pure, a function of work and time.

A step is short: one decode token for each of some replies, and at most one chunk of one prompt. In
order of importance:

- A prompt whose caller waits for the first word goes first, by deadline; each chunk that it had
  puts its deadline off by a second (`CHUNK_DELAY_NS`). So a prompt of two thousand tokens,
  or one such after the other, delays a turn of fifty by one chunk, where by deadline alone the turn
  waited for the whole prompt that had come before it. And nothing starves: what waits keeps its
  place, while the deadlines of what comes grow with time. Between two chunks of a prompt, replies
  get a step of their own, so that a long prompt adds at most one chunk to their next token.
- A prompt that had a chunk goes on in chunks of `LONG_CHUNK_NS`: that long a turn that comes
  meanwhile waits for it at most.
- A reply with a second of audio still to play yields to those with less: its next token is computed
  while that plays, and the caller hears no difference.
- A reply of which nothing is heard yet keeps the deadline of its first token, put off by what it
  has had: beside a long prompt it gets all steps, not every other one, until there is audio.
- Previews (prefill of text that may still change) get what is left: a whole chunk when the engine
  is idle, a small one beside replies, and one between two chunks of a prompt that had two
  already. Without that, one long prompt after the other keeps the words of all who speak waiting
  until their turns end.
- Background work, for which no caller waits, gets a step when there is nothing else at all, one
  request at a time in small chunks: what comes meanwhile waits for one short step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

PREVIEW_CHUNK = 16
"""Prompt tokens of a preview in a step that also decodes: the replies under way slow down by a
third rather than to a crawl. Smaller chunks pay the pass over the weights too often."""

PLAYBACK_SLACK_NS = 1_000_000_000
"""Audio still to be played that lets a reply yield. Lower: the longest prefill step, 0.2 s on two
cores, and synthesis no longer fit into it. Higher: fewer replies ever yield."""

CHUNK_DELAY_NS = 1_000_000_000
"""Lower than a chunk's time (on two cores 0.1 to 0.2 s with 135 million weights, 0.4 with half a
billion, 1.1 with 1.5 billion), and a long prompt comes before the turns of others: with 0.25 s and
half a billion a caller beside one who asked for replies to 1500 words each waited 6.3 s (p95, 8
turns), with 1 s 1.8 (5 turns). Higher: the second chunk of a longer turn waits longer while short
ones keep coming."""

LONG_CHUNK_NS = 100_000_000
"""Time of a chunk behind a long prompt's first. Lower: each pays the pass over the weights. Higher:
others wait. With half a billion weights on two cores with AVX2 a token takes 6.2 ms in chunks of
64 and 6.5 in chunks of 16, so that what waits does so for 0.1 s in place of 0.4."""


@dataclass(frozen=True, slots=True)
class ScheduleInput:
    """Work that a request still needs."""

    key: int
    """Id of the request."""
    num_tokens: int
    """Tokens to compute before the next one can be chosen; at least 1."""
    has_begun: bool
    """True when the reply has tokens already."""
    is_preview: bool = False
    due_ns: int | None = None
    """Monotonic: when the first token should exist; once there are some, when their audio has been
    played. None: at once for a reply under way, after all others for a prompt."""
    last_served: int = 0
    """Number of the step that last served it."""
    is_background: bool = False
    """True where no caller waits, now or soon."""
    num_computed: int = 0
    """Tokens that were computed for this request so far."""
    first_due_ns: int | None = None
    """Monotonic: when the first token of a reply under way should have existed, while there is no
    audio of it. None: there is, or nobody listens."""

    @property
    def is_decoding(self) -> bool:
        """True when the next token is one row away."""
        return self.has_begun and self.num_tokens == 1

    @property
    def urgency(self) -> tuple[bool, bool, float, int]:
        """Sort key: the most urgent first."""
        due = math.inf if self.due_ns is None else self.due_ns
        return self.is_background, self.is_preview, due, self.last_served


@dataclass(frozen=True, slots=True)
class ScheduledTokens:
    """Tokens that a step computes of one request."""

    key: int
    num_tokens: int


def schedule(
    work: Sequence[ScheduleInput],
    now_ns: int,
    *,
    prefill_chunk: int,
    long_chunk: int | None = None,
    prompt_was_last: bool,
) -> list[ScheduledTokens]:
    """Choose the next step's work, replies before the prompt. Empty only when there is none.

    `long_chunk`: the most tokens of a prompt that has had a chunk (None: as many as before).
    `prompt_was_last`: the step before served a prompt that a caller waits for.
    """
    front = [each for each in work if not each.is_background]
    if not front:
        return _background(work, prefill_chunk)
    work = front
    replies = [each for each in work if each.is_decoding]
    urgent = [each for each in replies if _is_urgent(each, now_ns)]
    prompts = sorted(
        (each for each in work if not each.is_decoding),
        key=lambda each: prompt_order(each, prefill_chunk),
    )
    if not prompts:
        return _tokens(urgent or replies)
    prompt = prompts[0]
    if prompt.is_preview:
        return [
            *_tokens(urgent or replies),
            _small_chunk(prompt, prefill_chunk)
            if replies
            else ScheduledTokens(prompt.key, min(prompt.num_tokens, prefill_chunk)),
        ]
    num_chunks = prompt.num_computed // prefill_chunk
    preview = None
    if num_chunks >= 2:
        preview = next((each for each in prompts if each.is_preview), None)
    if prompt_was_last and (urgent or preview):
        return [*_tokens(urgent), *([_small_chunk(preview, prefill_chunk)] if preview else [])]
    due = _due(prompt, prompt.due_ns, prefill_chunk)
    if any(_due(reply, reply.first_due_ns, prefill_chunk) < due for reply in urgent):
        return _tokens(urgent)
    chunk = long_chunk if long_chunk is not None and num_chunks else prefill_chunk
    return [ScheduledTokens(prompt.key, min(prompt.num_tokens, chunk))]


def prompt_order(prompt: ScheduleInput, prefill_chunk: int) -> tuple[bool, float, int]:
    """Sort key of prompts: the next one first."""
    return prompt.is_preview, _due(prompt, prompt.due_ns, prefill_chunk), prompt.last_served


def _due(each: ScheduleInput, due_ns: int | None, prefill_chunk: int) -> float:
    """Deadline, put off by what was computed for it."""
    put_off_ns = CHUNK_DELAY_NS * each.num_computed / prefill_chunk
    return math.inf if due_ns is None else due_ns + put_off_ns


def _small_chunk(prompt: ScheduleInput, prefill_chunk: int) -> ScheduledTokens:
    return ScheduledTokens(prompt.key, min(prompt.num_tokens, prefill_chunk, PREVIEW_CHUNK))


def _background(work: Sequence[ScheduleInput], prefill_chunk: int) -> list[ScheduledTokens]:
    if not work:
        return []
    next_up = min(work, key=lambda each: each.last_served)
    num_tokens = min(next_up.num_tokens, prefill_chunk, PREVIEW_CHUNK)
    return [ScheduledTokens(next_up.key, num_tokens)]


def _is_urgent(reply: ScheduleInput, now_ns: int) -> bool:
    return reply.due_ns is None or reply.due_ns - now_ns < PLAYBACK_SLACK_NS


def _tokens(replies: Sequence[ScheduleInput]) -> list[ScheduledTokens]:
    return [ScheduledTokens(each.key, 1) for each in replies]
