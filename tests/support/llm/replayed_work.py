"""Graphs that capture nothing, for kernels in an interpreter."""

from collections.abc import Callable

from llm_engine.cuda.steps.graph_runner import EagerGraphs


class ReplayedWork(EagerGraphs):
    """Runs work when it is replayed, and not at its capture: most of an interpreter's time would go
    into steps of sizes and choices that a test's reply never takes, and that nothing looks at."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return work
