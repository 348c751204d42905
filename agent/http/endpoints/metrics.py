"""`GET /metrics`: metrics in the text format of Prometheus.

Counters live with their owners; they are read at a scrape, and written in Prometheus' text format:
half a millisecond of the event loop. The engine's counters belong to its thread, which hands out a
copy between two steps (8 us of its time). While the model is loaded, or does not answer, its
figures are left out: a scrape always succeeds.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

import llm_engine
from agent.calls.registry import CallRegistry
from agent.http.hardening.http_protocol import HttpConnection
from agent.observability.trace_export import TraceExporter
from agent.session.response.controller import DUCKS, STOCK
from agent.stages.registry import ANSWER_TIMEOUT_S, Stages
from agent.tools.server_tools import ServerTools, ToolState
from latency_budget.enforcement.policy import Policy
from latency_budget.statistics.histogram import Buckets, Histogram

if TYPE_CHECKING:
    from agent.calls.call_webhooks import CallWebhooks

BUCKET_STEP: Final = 5
"""Every fifth bound of a histogram's buckets, which are a tenth apart, is exported: 30 of them,
each 1.6 times the one before. All 150 would make 450 lines of every scrape."""


TELL_EVERY_S: Final = 1.0
"""Interval in s between reports of the engine's state, while a client listens."""


async def engine_stats(stages: Stages) -> llm_engine.EngineStats | None:
    """None while there is no engine, or none that answers."""
    engine = stages.llm.model
    if engine is None:
        return None
    with contextlib.suppress(TimeoutError, llm_engine.EngineError):
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await engine.stats()
    return None


async def tell_of_engine(stages: Stages, calls: CallRegistry) -> None:
    """Publish the engine's state and the outcome of preemptive generation to listeners, until
    cancelled."""
    events = calls.events
    while True:
        await asyncio.sleep(TELL_EVERY_S)
        if events.num_listeners and (stats := await engine_stats(stages)) is not None:
            events.publish("engine", None, partial(dict, engine_state(stats, calls)))


def engine_state(stats: llm_engine.EngineStats, calls: CallRegistry) -> dict[str, Any]:
    """The event `engine`. Counters count since the start."""
    drafts = stats.drafts.values()
    return {
        "time_to_first_token_p50_ms": stats.first_token_ms.quantile(0.5),
        "time_to_first_token_p95_ms": stats.first_token_ms.quantile(0.95),
        "inter_token_p50_ms": stats.between_tokens_ms.quantile(0.5),
        "inter_token_p95_ms": stats.between_tokens_ms.quantile(0.95),
        "inter_token_p99_ms": stats.between_tokens_ms.quantile(0.99),
        "waiting": stats.num_waiting,
        "replying": stats.num_replying,
        "pages_used": stats.pages_used,
        "pages_total": stats.pages_total,
        "page_tokens": stats.page_tokens,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "output_tokens": stats.output_tokens,
        "drafted_tokens": sum(draft.num_drafted for draft in drafts),
        "accepted_tokens": sum(draft.num_accepted for draft in drafts),
        "guesses": {
            **asdict(calls.guesses),
            "wasted_ms": calls.history.histograms.wasted_ms,
        },
    }


class Metrics:
    """One instance for all scrapes."""

    def __init__(
        self,
        stages: Stages,
        calls: CallRegistry,
        tools: ServerTools | None = None,
        webhooks: "CallWebhooks | None" = None,
    ) -> None:
        """`tools`: those that run on the server; None: there are none; so for `webhooks`."""
        self._webhooks = webhooks
        self._tools = tools
        self._stages = stages
        self._calls = calls
        self._process = ProcessCollector(registry=None)

    async def families(self) -> list[Metric]:
        """All metrics as they are now."""
        stats = await engine_stats(self._stages)
        families = [*self._service(), *self._process.collect()]
        return families if stats is None else [*families, *_engine(stats)]

    async def serve(self, request: Request) -> Response:
        text = generate_latest(_Collected(await self.families()))
        return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    def _service(self) -> Iterator[Metric]:
        calls, counts = self._calls, self._calls.history.counts
        guesses, condensing = calls.guesses, calls.condensing
        yield _gauge("calls", "Calls in progress.", len(calls))
        text = "Tools that run in the background of calls."
        yield _gauge("background_tools", text, calls.num_background)
        text = "Most calls at once whose p95 is predicted within the budget; missing until known."
        yield _gauge("calls_capacity", text, calls.capacity())
        text = "From the start of the process until calls were taken; missing until then."
        yield _gauge("start_seconds", text, calls.ready_after_s)
        text = "Traces in memory: those of calls in progress, and of the newest that are over."
        yield _gauge("traces_kept", text, calls.traces.num_kept)
        waiting_calls = calls.waiting
        yield _gauge("calls_waiting", "Calls of which the client is lost.", len(waiting_calls))
        for name, text, value in (
            ("calls_admitted", "Calls taken since the start.", calls.admitted),
            (
                "calls_refused",
                "Calls refused because all lines were busy, or one more would be too many.",
                calls.refusals.total,
            ),
            (
                "settings_reloads",
                "Reloads of the settings that were applied.",
                calls.reloads["applied"],
            ),
            (
                "settings_reloads_refused",
                "Reloads of the settings that were refused.",
                calls.reloads["refused"],
            ),
            ("handoffs", "Times that an agent handed a call over to another.", calls.num_handoffs),
            ("calls_lost", "Times that a call lost its client.", waiting_calls.num_lost),
            ("calls_resumed", "Times that a client came back.", waiting_calls.num_back),
            ("turns", "Turns that are over.", counts.turns),
            ("turns_answered", "Turns with an audible answer.", counts.answered),
            ("turns_late", "Turns answered after the budget's total.", counts.late),
            ("turns_cut_in", "Turns answered before the caller's last word.", counts.cut_in),
            (
                "turns_interrupted",
                "Turns whose answer was stopped, and had not cut in.",
                counts.interrupted,
            ),
            (
                "turns_withdrawn",
                "Turns that the caller went on with before an answer was heard.",
                counts.withdrawn,
            ),
            (
                "turns_withdrawn_openers",
                "Of the turns withdrawn, those of which an early opener was heard.",
                counts.withdrawn_openers,
            ),
            ("turns_reopened", "Turns that go on with one answered too early.", counts.reopened),
            ("turns_openers", "Turns whose reply began with an opener.", counts.openers),
            ("turns_prepared", "Turns whose reply a guess had begun.", counts.prepared),
            ("turns_incomplete", "Turns whose account of time has gaps.", counts.incomplete),
            ("guesses", "Replies prepared before the turn was known to be over.", guesses.made),
            ("guesses_used", "Of these, those that the caller heard.", guesses.used),
            ("guesses_dropped", "Of these, those of which nothing came.", guesses.dropped),
            (
                "contexts_condensed",
                "Times that a call's oldest turns were condensed.",
                condensing.done,
            ),
            (
                "condensing_abandoned",
                "Attempts at that which gave way to a turn, and went on after it.",
                condensing.abandoned,
            ),
            ("condensing_failed", "Attempts at that which failed.", condensing.failed),
            (
                "connections_refused",
                "Connections closed because there were too many, or too fast.",
                HttpConnection.num_refused,
            ),
        ):
            yield _counter(name, text, value)
        yield from self._latency()
        yield from _policy(calls.policy)
        yield from self._overlaps()
        yield from _stages(self._stages)
        if self._tools is not None:
            yield _tool_calls(self._tools.tool_counts.counts)
        if calls.recorder is not None:
            text = "1 where calls can be recorded."
            yield _gauge("recorder_ok", text, float(calls.recorder.problem is None))
            text = "The most sound that one call ever had waiting for the disk."
            yield _gauge("recorder_waiting_peak_seconds", text, calls.recorder.peak_waiting_s)
        if calls.store is not None:
            store = calls.store
            text = "Turns that are not in the store yet."
            yield _gauge("store_turns_waiting", text, store.waiting)
            text = "The most turns that ever waited at a time."
            yield _gauge("store_turns_waiting_peak", text, store.peak_waiting)
            yield _counter("store_turns_lost", "Turns that could not be kept.", store.lost)
            text = "Damaged files that were set aside."
            yield _counter("store_set_aside", text, store.num_set_aside)
            yield _gauge("store_ok", "1 where turns can be kept.", float(store.problem is None))
            if self._webhooks is not None:
                yield from _webhook_messages(self._webhooks)
                text = "Messages that found the queue of their webhook endpoint full."
                yield _counter("webhook_messages_dropped", text, store.num_messages_dropped)
        if calls.exporter is not None:
            yield from _exports(calls.exporter)

    def _latency(self) -> Iterator[Metric]:
        """Histograms of turns with bounds around the budget, and the cost of discarded guesses."""
        found = self._calls.history.histograms
        turns = HistogramMetricFamily(
            "halfsec_turn_e2e_seconds",
            "From the caller's last word to the first audible answer.",
            labels=["profile"],
        )
        for profile, buckets in found.turns.items():
            turns.add_metric([profile], _cumulative(buckets), buckets.sum_ms / 1e3)
        stages = HistogramMetricFamily(
            "halfsec_stage_exposed_seconds",
            "What a stage made the caller wait, turn by turn.",
            labels=["stage"],
        )
        for stage, buckets in found.stages.items():
            stages.add_metric([stage.value], _cumulative(buckets), buckets.sum_ms / 1e3)
        yield from (turns, stages)
        tokens = found.wasted_prompt_tokens + found.wasted_output_tokens
        seconds = found.wasted_ms / 1e3
        yield _counter("guesses_wasted_seconds", "Work of stages for guesses in vain.", seconds)
        yield _counter("guesses_wasted_tokens", "Tokens computed for guesses in vain.", tokens)

    def _overlaps(self) -> Iterator[Metric]:
        """Stock clients stop at once and are spoken to again; others turn the reply down."""
        counts = self._calls.barge_ins
        for name, text, found in (
            ("barge_ins", "Replies that the caller's words cut.", counts.barged_in),
            (
                "backchannels_kept",
                "Replies that went on after a backchannel or noise.",
                counts.kept,
            ),
        ):
            family = CounterMetricFamily(f"halfsec_{name}", text, labels=["client"])
            for client in (STOCK, DUCKS):
                family.add_metric([client], found[client])
            yield family


def _stages(stages: Stages) -> Iterator[Metric]:
    labels = ["stage"]
    ready = GaugeMetricFamily("halfsec_stage_ready", "1 where a stage works.", labels=labels)
    waiting = GaugeMetricFamily(
        "halfsec_stage_jobs_waiting", "Jobs in a stage's queue.", labels=labels
    )
    restarts = CounterMetricFamily(
        "halfsec_stage_restarts", "How often a stage was given up.", labels=labels
    )
    states, threads = stages.progress(), stages.threads()
    # What calls of other languages had loaded since the start has no progress.
    later = {name: thread.model is not None for name, thread in threads.items()}
    for name, is_ready in (later | {name: it == "ready" for name, it in states.items()}).items():
        ready.add_metric([name], float(is_ready))
    for name, stage in threads.items():
        waiting.add_metric([name], stage.waiting)
        restarts.add_metric([name], stage.restarts)
    yield from (ready, waiting, restarts)
    finding = stages.language_finding
    text = "Passes of the recognizer that looked for the language of a call."
    yield _counter("asr_language_passes", text, finding.num_passes)
    text = "Their time for that, in seconds; part of the recognizer's."
    yield _counter("asr_language_seconds", text, finding.ms / 1e3)


def _tool_calls(counts: Mapping[tuple[str, ToolState], int]) -> Metric:
    """Counters of the server's tools: calls started, and how they ended."""
    family = CounterMetricFamily(
        "halfsec_tool_calls", "Calls of tools of the server.", labels=["tool", "state"]
    )
    for (tool, state), number in sorted(counts.items()):
        family.add_metric([tool, state], number)
    return family


def _policy(policy: Policy) -> Iterator[Metric]:
    """Metrics of the actions against late turns, and of their effect."""
    predicted_ms = policy.predicted_ms()
    if predicted_ms is not None:
        text = "What the next turn is predicted to take, but for the wait for its end."
        yield _gauge("turn_predicted_seconds", text, predicted_ms / 1e3)
    labels = ["action"]
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
        "is_on": GaugeMetricFamily("halfsec_action_on", "1 where it may be taken.", labels=labels),
        "is_set_aside": GaugeMetricFamily(
            "halfsec_action_set_aside", "1 while it rests, because it did not pay.", labels=labels
        ),
        "times": CounterMetricFamily(
            "halfsec_actions", "Turns in which it was taken.", labels=labels
        ),
        "times_set_aside": CounterMetricFamily(
            "halfsec_actions_set_aside", "How often it did not pay.", labels=labels
        ),
    }
    seconds = {
        name: GaugeMetricFamily(
            f"halfsec_action_{name}_seconds", f"{text}, over all turns.", labels=labels
        )
        for name, text in (("predicted", "What it was to save"), ("saved", "What it saved"))
    }
    for state in policy.states():
        for name, family in families.items():
            family.add_metric([state.action.value], float(getattr(state, name)))
        seconds["predicted"].add_metric([state.action.value], state.predicted_ms / 1e3)
        seconds["saved"].add_metric([state.action.value], state.saved_ms / 1e3)
    yield from (*families.values(), *seconds.values())


def _webhook_messages(webhooks: "CallWebhooks") -> Iterator[Metric]:
    """What became of the messages about ended calls, by endpoint."""
    labels = ["endpoint"]
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
        "num_delivered": CounterMetricFamily(
            "halfsec_webhook_messages_delivered", "Messages that were taken.", labels=labels
        ),
        "num_failures": CounterMetricFamily(
            "halfsec_webhook_failures", "Attempts to send that failed.", labels=labels
        ),
        "num_given_up": CounterMetricFamily(
            "halfsec_webhook_messages_given_up",
            "Messages given up: too old, or the endpoint is gone (410).",
            labels=labels,
        ),
        "num_waiting": GaugeMetricFamily(
            "halfsec_webhook_messages_waiting", "Messages in the queue.", labels=labels
        ),
    }
    for name, endpoint in webhooks.endpoints.items():
        for figure, family in families.items():
            family.add_metric([name], getattr(endpoint, figure))
    yield from families.values()


def _exports(exporter: TraceExporter) -> Iterator[Metric]:
    """Each turn and each call is a trace."""
    yield _counter("traces_exported", "Traces that reached the collector.", exporter.exported)
    lost = CounterMetricFamily(
        "halfsec_traces_dropped", "Traces that will not reach the collector.", labels=["reason"]
    )
    lost.add_metric(["queue_full"], exporter.dropped)
    lost.add_metric(["refused"], exporter.refused)
    yield lost
    yield _counter("trace_export_failures", "Attempts to export that failed.", exporter.failures)
    yield _gauge("traces_waiting", "Traces that are not exported yet.", exporter.waiting)
    text = "The most traces that ever waited at a time."
    yield _gauge("traces_waiting_peak", text, exporter.peak_waiting)
    yield _gauge("traces_ok", "1 where traces arrive.", float(exporter.problem is None))


def _engine(stats: llm_engine.EngineStats) -> Iterator[Metric]:
    for name, text, histogram in (
        ("time_to_first_token", "From a request to its first token.", stats.first_token_ms),
        ("inter_token_latency", "Between two tokens of a reply.", stats.between_tokens_ms),
        ("queue_time", "From a request to its first step.", stats.queue_ms),
    ):
        yield _seconds(f"llm_{name}_seconds", text, histogram)
    for name, text, value in (
        ("prompt_tokens", "Tokens of prompts.", stats.prompt_tokens),
        ("prompt_tokens_cached", "Tokens of prompts that the cache had.", stats.cached_tokens),
        ("output_tokens", "Tokens chosen.", stats.output_tokens),
        ("evictions", "Idle dialogues whose cache was given to others.", stats.num_evicted),
        ("preemptions", "Replies that had to compute their cache anew.", stats.num_preempted),
    ):
        yield _counter(f"llm_{name}", text, value)
    for name, text, value in (
        ("requests_waiting", "Requests without a first token.", stats.num_waiting),
        ("requests_replying", "Requests with a first token.", stats.num_replying),
        ("sequences", "Dialogues and loose requests.", stats.num_sequences),
        ("cache_pages", "Pages that the cache has.", stats.pages_total),
        ("cache_pages_used", "Pages in use.", stats.pages_used),
        ("cache_pages_high_water", "Most pages ever in use.", stats.pages_high_water),
        ("cache_bytes", "Memory that keys and values take.", stats.cache_bytes),
    ):
        yield _gauge(f"llm_{name}", text, value)
    labels = ["drafter"]
    drafted = CounterMetricFamily(
        "halfsec_llm_draft_tokens", "Tokens guessed, and checked.", labels=labels
    )
    accepted = CounterMetricFamily(
        "halfsec_llm_draft_tokens_accepted", "Guessed tokens that were right.", labels=labels
    )
    for drafter, draft in stats.drafts.items():
        drafted.add_metric([drafter], draft.num_drafted)
        accepted.add_metric([drafter], draft.num_accepted)
    yield from (drafted, accepted)


def _gauge(name: str, text: str, value: float | None) -> Metric:
    """`value`: None exports the family without a sample."""
    return GaugeMetricFamily(f"halfsec_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"halfsec_{name}", text, value=value)


def _seconds(name: str, text: str, histogram: Histogram) -> Metric:
    buckets = [
        (f"{ms / 1e3:.6g}", float(number)) for ms, number in histogram.cumulative(BUCKET_STEP)
    ]
    buckets.append(("+Inf", float(histogram.count)))
    return HistogramMetricFamily(
        f"halfsec_{name}", text, buckets=buckets, sum_value=histogram.sum_ms / 1e3
    )


def _cumulative(buckets: Buckets) -> list[tuple[str, float]]:
    found = [(f"{ms / 1e3:.6g}", float(number)) for ms, number in buckets.cumulative()]
    return [*found, ("+Inf", float(buckets.count))]


class _Collected(Collector):
    """Gives what was collected already."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
