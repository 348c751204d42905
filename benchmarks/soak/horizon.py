"""What thirty days of a soak's load would be, by arithmetic.

Each row: what runs up or runs out, how much of it the soak used in an hour, what thirty days make
of that, and the bound in the code. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.calls.registry import MAX_TRACES
from agent.http.auth.client_secrets import MAX_SECRETS

HOURS: Final = 30 * 24
BOUND: Final = 2**63 - 1
"""Greatest number of SQLite's rows, and of nanoseconds in 64 bits."""


@dataclass(frozen=True, slots=True)
class HorizonRow:
    """One thing that thirty days could use up."""

    what: str
    per_hour: float | None
    """None: does not depend on the load."""
    in_30_days: str
    bound: str
    holds: bool | None
    """None: depends on the machine's set-up, which `bound` names."""

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "per_hour": self.per_hour,
            "in_30_days": self.in_30_days,
            "bound": self.bound,
            "holds": self.holds,
        }


def rows_of(
    per_hour: Mapping[str, float],
    slopes: Mapping[str, tuple[float, float]],
    settings: Mapping[str, float],
) -> list[HorizonRow]:
    """The rows, of rates an hour: "turns", "visits", "store_mb", "log_mb", "recordings_mb".
    `slopes`: intervals of "descriptors", "threads", "rss_mb"; left out where not judged.
    `settings`: "store_turns", "store_days", "free_mb", "memory_mb", "soft_files", "soft_threads"
    (descriptors and threads that the process may have; left out where there is no limit)."""
    rows: list[HorizonRow] = []
    turns = per_hour["turns"] * HOURS
    limit = settings["store_turns"]
    kept_mb = per_hour["store_mb"] / max(1e-9, per_hour["turns"]) * min(turns, limit)
    rows.append(
        HorizonRow(
            "turns in the store",
            per_hour["turns"],
            f"{turns:.0f} turns, of which {min(turns, limit):.0f} are kept: {kept_mb:.0f} MB",
            f"latency_budget.store_turns = {limit:.0f}, store_days = {settings['store_days']:.0f}",
            turns <= BOUND and kept_mb < settings["free_mb"],
        )
    )
    rows.append(_files("log", per_hour["log_mb"], settings["free_mb"]))
    if per_hour.get("recordings_mb"):
        rows.append(_files("recordings of calls", per_hour["recordings_mb"], settings["free_mb"]))
    visits = per_hour["visits"] * HOURS
    rows.append(
        HorizonRow(
            "ids of calls, turns, responses",
            per_hour["visits"],
            f"{visits:.0f} calls and requests",
            "random ids of 128 bits; counters are Python's integers, in the store 64 bits",
            True,
        )
    )
    rows.append(
        HorizonRow(
            "monotonic time in ns",
            None,
            f"{HOURS * 3600 * 1e9:.3g} ns",
            f"{BOUND:.3g} where it is stored in 64 bits (292 years); exact in JavaScript up to "
            f"{2**53:.3g} ns (104 days)",
            True,
        )
    )
    rows.append(
        HorizonRow("traces in memory", None, f"{MAX_TRACES} of calls that are over", "fixed", True)
    )
    for name, limit_name, unit in (
        ("descriptors", "soft_files", ""),
        ("threads", "soft_threads", ""),
        ("rss_mb", "memory_mb", " MB"),
    ):
        rows.append(_slope(name, slopes.get(name), settings.get(limit_name), unit))
    rows += [
        HorizonRow(
            "self-signed certificate",
            None,
            "made for 824 days at most, renewed at a start",
            "a service that runs for longer than its certificate must be started anew",
            True,
        ),
        HorizonRow(
            "certificate that was given",
            None,
            "90 days with Let's Encrypt",
            "access.tls_cert is read at the start: restart after each renewal",
            None,
        ),
        HorizonRow(
            "client secrets", None, "live for minutes", f"{MAX_SECRETS} at a time, else 429", True
        ),
        HorizonRow(
            "clock changes",
            None,
            "two of an hour at most where clocks change; NTP corrects by slewing",
            "durations and deadlines are of the monotonic clock; dates are UTC; "
            "`halfsec bench faults` steps the clock by an hour either way",
            True,
        ),
    ]
    return rows


def _files(what: str, mb_per_hour: float, free_mb: float) -> HorizonRow:
    total = mb_per_hour * HOURS
    return HorizonRow(
        f"volume of the {what}",
        mb_per_hour,
        f"{total:.0f} MB",
        f"{free_mb:.0f} MB are free here; rotate the log, delete old recordings",
        total < free_mb,
    )


def _slope(
    name: str, slope: tuple[float, float] | None, limit: float | None, unit: str
) -> HorizonRow:
    """A metric whose slope an hour lies in an interval. It holds where the whole interval does, and
    does not where none of it does."""
    if slope is None:
        return HorizonRow(name, None, "not judged: the soak was too short", "", None)
    least, most = (max(0.0, end) * HOURS for end in slope)
    more = f"{least:.0f} to {most:.0f}{unit} more, by the interval"
    if limit is None:
        return HorizonRow(name, slope[1], more, "", None)
    bound = f"limit {limit:.0f}{unit}"
    if most < limit:
        return HorizonRow(name, slope[1], more, bound, True)
    if least > limit:
        return HorizonRow(name, slope[1], more, bound, False)
    return HorizonRow(name, slope[1], more, f"{bound}: a longer soak narrows the interval", None)
