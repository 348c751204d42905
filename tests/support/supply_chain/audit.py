"""`make audit`: known vulnerabilities of the pinned packages, by pip-audit.

    python -m tests.support.supply_chain.audit PIP_AUDIT

pip-audit asks PyPI's vulnerability service. Without a network it ends with status 1, as with a
vulnerability, and behind a proxy that answers "not found" with status 0; here these are told apart.
Exit status 0: none is known. 1: some are. 2: the service could not be asked, so nothing is known.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[3]
PINS: Final = ROOT / "constraints.txt"
TIMEOUT_S: Final = 600
NOT_ASKED: Final = 2


def main(argv: Sequence[str]) -> int:
    tool, *options = argv
    command = [
        *(tool, "--requirement", str(PINS), "--no-deps", "--disable-pip", "--format=json"),
        *("--progress-spinner=off", *options),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _not_asked(f"{type(error).__name__}: {error}")
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return _not_asked(done.stderr)
    skipped = [each["skip_reason"] for each in found if "skip_reason" in each]
    if len(skipped) == len(found):  # a proxy that knows no package, which pip-audit takes for well
        return _not_asked(str(skipped[0]) if skipped else "it looked nothing up")
    return report(found)


def report(found: Sequence[dict[str, Any]]) -> int:
    """Print what is known of each package. Returns the exit status."""
    vulnerable = [each for each in found if each.get("vulns")]
    for each in vulnerable:
        for known in each["vulns"]:
            mended = ", ".join(known["fix_versions"]) or "no version"
            print(f"{each['name']} {each['version']}: {known['id']}, mended in {mended}")
    unknown = [each for each in found if "skip_reason" in each]
    for each in unknown:
        print(f"{each['name']}: not looked up: {each['skip_reason']}")
    print(
        f"{len(found)} packages of {PINS.name}: {len(vulnerable)} with known vulnerabilities, "
        f"{len(unknown)} not looked up"
    )
    return 1 if vulnerable or unknown else 0


def _not_asked(said: str) -> int:
    last = (said.strip().splitlines() or ["it said nothing"])[-1]
    print(
        "make audit: NOTHING WAS AUDITED: the vulnerability service of PyPI could not be asked.\n"
        f"  pip-audit: {last[:300]}\n"
        "  It needs https://pypi.org; run this where that can be reached.",
        file=sys.stderr,
    )
    return NOT_ASKED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
