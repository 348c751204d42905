"""Latency budgets: the class, and each preset's total and allowances by stage.

The total counts from the caller's last word to the agent's first sound.

An allowance bounds the *exposed* time of a stage: its part of the critical path, not its work.
The allowances assume that the end of the turn is decided before the reply is ready, so that every
stage adds to the wait; they add up to the total. Where that decision takes longer, it hides the
other stages, and only the total binds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from .turn import Stage

TARGET_MS: Final = 500
"""From the caller's last word to the agent's first audible sound: the promise of the service, and
the default of every setting that states it. People leave some 200 ms between two turns of a
conversation (Stivers et al., 2009, doi:10.1073/pnas.0903616106)."""


class BudgetError(ValueError):
    """Contradicting numbers of a budget. The message says which."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The exposed time that one stage may have, with the reason."""

    stage: Stage
    ms: int
    """Whole milliseconds: finer cannot be held on a shared machine."""
    reason: str


@dataclass(frozen=True, slots=True)
class Budget:
    """A total and its division among all stages. Raises `BudgetError` unless it adds up."""

    name: str
    """Name of the preset it belongs to."""
    total_ms: int
    allowances: tuple[Allowance, ...]
    """One for every stage."""
    widened_ms: int = 0
    """Wait that the client asked for, already contained in the total."""

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise BudgetError("a budget needs a name")
        seen: set[Stage] = set()
        for allowance in self.allowances:
            if allowance.stage in seen:
                raise BudgetError(f"budget {self.name}: {allowance.stage} has two allowances")
            if allowance.ms < 0:
                raise BudgetError(
                    f"budget {self.name}: {allowance.stage} is allowed {allowance.ms} ms;"
                    " an allowance is 0 or more"
                )
            if not allowance.reason.strip():
                raise BudgetError(f"budget {self.name}: {allowance.stage} gives no reason")
            seen.add(allowance.stage)
        if missing := [stage.value for stage in Stage if stage not in seen]:
            raise BudgetError(f"budget {self.name}: no allowance for {', '.join(missing)}")
        allowed_ms = sum(allowance.ms for allowance in self.allowances)
        if self.total_ms <= 0 or allowed_ms != self.total_ms:
            raise BudgetError(
                f"budget {self.name}: the allowances add up to {allowed_ms} ms,"
                f" the total is {self.total_ms} ms; they must be equal and above 0"
            )
        if not 0 <= self.widened_ms <= self.total_ms:
            raise BudgetError(f"budget {self.name}: widened by {self.widened_ms} ms")

    def allowance_ms(self, stage: Stage) -> int:
        """The exposed time that the stage may have, in ms."""
        return next(a.ms for a in self.allowances if a.stage is stage)

    def with_total(self, total_ms: int) -> "Budget":
        """Scale the budget to another total (a setting), every allowance in proportion.

        Whole milliseconds left over by rounding go to the allowances that lost most of one.
        Raises `BudgetError` for a total that is not above 0, and on a widened budget.
        """
        if total_ms <= 0 or self.widened_ms:
            raise BudgetError(
                f"budget {self.name}: cannot divide {total_ms} ms (widened by {self.widened_ms} ms)"
            )
        if total_ms == self.total_ms:
            return self
        shares = [divmod(a.ms * total_ms, self.total_ms) for a in self.allowances]
        left_ms = total_ms - sum(whole_ms for whole_ms, _ in shares)
        by_loss = sorted(range(len(shares)), key=lambda i: shares[i][1], reverse=True)
        raised = set(by_loss[:left_ms])
        allowances = tuple(
            Allowance(
                a.stage,
                whole_ms + (i in raised),
                f"{a.ms} of {self.total_ms} ms in proportion: {a.reason}",
            )
            for i, (a, (whole_ms, _)) in enumerate(zip(self.allowances, shares, strict=True))
        )
        return Budget(self.name, total_ms, allowances)

    def widened(self, wait_ms: int) -> "Budget":
        """Add a wait that the client asked for (an explicit silence duration) to the budget.

        It goes to the endpoint's allowance and stays visible as `widened_ms`. Raises `BudgetError`
        for a negative wait, and on a budget already widened: widen the profile instead.
        """
        if wait_ms < 0 or self.widened_ms:
            raise BudgetError(
                f"budget {self.name}: cannot widen by {wait_ms} ms"
                f" (already widened by {self.widened_ms} ms)"
            )
        if wait_ms == 0:
            return self
        allowances = tuple(
            Allowance(a.stage, a.ms + wait_ms, f"{a.reason}; {wait_ms} ms asked for by the client")
            if a.stage is Stage.ENDPOINT
            else a
            for a in self.allowances
        )
        return Budget(self.name, self.total_ms + wait_ms, allowances, widened_ms=wait_ms)

    def overlaid(self, overlay: "Overlay") -> "Budget":
        """Put the budget on another kind of line: the overlay's allowances replace these, the
        total changes by the difference, and the name becomes "NAME+OVERLAY". Raises `BudgetError`
        on a widened budget."""
        if self.widened_ms:
            raise BudgetError(f"budget {self.name}: put {overlay.name} on it before it is widened")
        others = {allowance.stage: allowance for allowance in overlay.allowances}
        allowances = tuple(others.get(a.stage, a) for a in self.allowances)
        total_ms = sum(allowance.ms for allowance in allowances)
        return Budget(f"{self.name}+{overlay.name}", total_ms, allowances)


@dataclass(frozen=True, slots=True)
class Overlay:
    """Allowances of another kind of line, which replace those of any budget."""

    name: str
    allowances: tuple[Allowance, ...]


_CAPTURE = Allowance(Stage.CAPTURE, 40, "a client's 20 ms frames, sent in twos, on a near network")
_TOOL = Allowance(Stage.TOOL, 0, "a tool runs behind a spoken filler, or the turn is late")
_PACING = Allowance(Stage.PACING, 10, "half a 20 ms frame")
_TRANSPORT = Allowance(Stage.TRANSPORT, 30, "a near network and 20 ms of buffer at the client")

# Measured on two cores, no GPU. Lower an allowance and ordinary turns overrun it; raise one and
# another stage must give the time back, for the sum is the promise.
EMBEDDED = Budget(
    "embedded",
    TARGET_MS,
    (
        _CAPTURE,
        Allowance(Stage.ENDPOINT, 100, "a pause is seen after 64-96 ms; the chain hides the rest"),
        Allowance(Stage.ASR, 150, "short-window final: encoder 90-107 ms, decode 43 ms"),
        Allowance(Stage.LLM_PREFILL, 40, "the prefix is warm; up to 8 new tokens take 31 ms"),
        Allowance(Stage.LLM_CLAUSE, 90, "a clause of 5-6 tokens at 15-16 ms a token"),
        _TOOL,
        Allowance(Stage.TTS, 40, "a short first piece: 17-29 ms alone, more beside the decoder"),
        _PACING,
        _TRANSPORT,
    ),
)

_EMBEDDED_HALF_BILLION = Budget(
    "embedded-0.5b",
    TARGET_MS,
    (
        _CAPTURE,
        Allowance(Stage.ENDPOINT, 100, "as on the embedded models"),
        Allowance(Stage.ASR, 120, "short-window final: 103 to 113 ms"),
        Allowance(Stage.LLM_PREFILL, 60, "the prefix is warm; a few new tokens take 55 ms"),
        Allowance(Stage.LLM_CLAUSE, 100, "a clause of 4-5 tokens at 20-22 ms a token"),
        _TOOL,
        Allowance(Stage.TTS, 40, "as on the embedded models"),
        _PACING,
        _TRANSPORT,
    ),
)

_EMBEDDED_BILLION = Budget(
    "embedded-1.5b",
    TARGET_MS,
    (
        _CAPTURE,
        Allowance(Stage.ENDPOINT, 70, "what the model leaves: a pause is seen after 64-96 ms"),
        Allowance(Stage.ASR, 80, "estimate: the short-window final on four cores"),
        Allowance(Stage.LLM_PREFILL, 60, "estimate: a few new tokens, the prefix is warm"),
        Allowance(Stage.LLM_CLAUSE, 170, "estimate: a clause of 4-5 tokens at 35-40 ms a token"),
        _TOOL,
        Allowance(Stage.TTS, 40, "as on the embedded models"),
        _PACING,
        _TRANSPORT,
    ),
)

# The other presets' allowances are estimates, not measurements, and their reasons say from what.
_CPU = Budget(
    "cpu",
    900,
    (
        _CAPTURE,
        Allowance(Stage.ENDPOINT, 100, "as on the embedded models"),
        Allowance(Stage.ASR, 300, "estimate: Whisper base costs twice what tiny does"),
        Allowance(Stage.LLM_PREFILL, 100, "estimate: 1.7 B parameters, the prefix is warm"),
        Allowance(Stage.LLM_CLAUSE, 250, "estimate: a clause of 5 tokens at 45-50 ms a token"),
        _TOOL,
        Allowance(Stage.TTS, 70, "estimate: the same voice beside a busier decoder"),
        _PACING,
        _TRANSPORT,
    ),
)
_GPU_4B = Budget(
    "gpu-4b",
    TARGET_MS,
    (
        _CAPTURE,
        Allowance(Stage.ENDPOINT, 170, "what the chain leaves: a longer wait cuts in less often"),
        Allowance(Stage.ASR, 60, "as for gpu-8b"),
        Allowance(Stage.LLM_PREFILL, 30, "as for gpu-8b"),
        Allowance(Stage.LLM_CLAUSE, 100, "estimate: 4.6 GB a token at 0.5 TB/s, 10 tokens"),
        _TOOL,
        Allowance(Stage.TTS, 60, "as for gpu-8b"),
        _PACING,
        _TRANSPORT,
    ),
)
_GPU_8B = Budget(
    "gpu-8b",
    TARGET_MS,
    (
        _CAPTURE,
        Allowance(Stage.ENDPOINT, 220, "what the chain leaves: a longer wait cuts in less often"),
        Allowance(Stage.ASR, 60, "estimate: Whisper turbo on the GPU"),
        Allowance(Stage.LLM_PREFILL, 30, "servers take 27-64 ms cold; the prefix is warm"),
        Allowance(Stage.LLM_CLAUSE, 50, "estimate: 16 GB a token at 4 TB/s, 10 tokens"),
        _TOOL,
        Allowance(Stage.TTS, 60, "estimate: a first piece of twice the embedded length"),
        _PACING,
        _TRANSPORT,
    ),
)
_GPU_70B = Budget(
    "gpu-70b",
    TARGET_MS,
    (
        _CAPTURE,
        Allowance(Stage.ENDPOINT, 100, "as on the embedded models: the chain leaves no more"),
        Allowance(Stage.ASR, 60, "as for gpu-8b"),
        Allowance(Stage.LLM_PREFILL, 50, "estimate: a warm prefix and two steps of decoding"),
        Allowance(Stage.LLM_CLAUSE, 150, "estimate: 70 GB a token at 4 TB/s, 8 tokens"),
        _TOOL,
        Allowance(Stage.TTS, 60, "as for gpu-8b"),
        _PACING,
        _TRANSPORT,
    ),
)
_REMOTE = Budget(
    "remote",
    TARGET_MS,
    (
        _CAPTURE,
        Allowance(Stage.ENDPOINT, 100, "as on the embedded models"),
        Allowance(Stage.ASR, 150, "as on the embedded models"),
        Allowance(Stage.LLM_PREFILL, 60, "estimate: a near network; the words were sent ahead"),
        Allowance(Stage.LLM_CLAUSE, 70, "estimate: a clause of 5 tokens at 14 ms a token"),
        _TOOL,
        Allowance(Stage.TTS, 40, "as on the embedded models"),
        _PACING,
        _TRANSPORT,
    ),
)

PROFILES: Mapping[str, Budget] = MappingProxyType(
    {
        budget.name: budget
        for budget in (
            *(EMBEDDED, _EMBEDDED_HALF_BILLION, _EMBEDDED_BILLION),
            *(_CPU, _REMOTE, _GPU_4B, _GPU_8B, _GPU_70B),
        )
    }
)
"""Budgets by the name of their preset."""


TELEPHONY = Overlay(
    "telephony",
    (
        Allowance(Stage.CAPTURE, 80, "estimate: 20 ms frames behind a carrier's 40 ms of buffer"),
        Allowance(Stage.PACING, 20, "a carrier takes whole frames of 20 ms"),
        Allowance(Stage.TRANSPORT, 110, "estimate: the way back through buffer and network"),
    ),
)

OVERLAYS: Mapping[str, Overlay] = MappingProxyType({TELEPHONY.name: TELEPHONY})
"""Kinds of line by their name."""


def budget_profile(name: str = EMBEDDED.name) -> Budget:
    """The budget of a preset, alone or on another kind of line: "embedded+telephony".

    Raises `BudgetError` that lists the known names.
    """
    preset, plus, overlay = name.partition("+")
    if preset not in PROFILES or (plus and overlay not in OVERLAYS):
        known = ", ".join(sorted(PROFILES))
        overlays = ", ".join(f"+{each}" for each in sorted(OVERLAYS))
        raise BudgetError(
            f"no budget profile named {name!r}; there are: {known}, each also with {overlays}"
        )
    return PROFILES[preset].overlaid(OVERLAYS[overlay]) if plus else PROFILES[preset]
