"""`python -m tests.support.browser.check_types`: types in the pages' comments.

TypeScript reads them; nothing is compiled. The worklets, which have no page around them, are
checked apart, with what they import. Where there is no Node that is said and passed over, unless
REQUIRE_BROWSER is 1.
"""

import os
import subprocess
import sys
from pathlib import Path

from tests.clients.peers import MissingTool, environment

HERE = Path(__file__).parent


def main() -> int:
    try:
        there = environment(HERE)
    except MissingTool as error:
        print(f"The pages' types are not checked: {error}", file=sys.stderr)
        return int(os.environ.get("REQUIRE_BROWSER") == "1")
    status = 0
    for name in ("types-pages.json", "types-worklets.json"):
        command = (
            *("node", there / "node_modules" / "typescript" / "bin" / "tsc"),
            *("--project", HERE / name, "--typeRoots", there / "node_modules" / "@types"),
        )
        status |= subprocess.run(command, check=False).returncode
    return int(status != 0)


if __name__ == "__main__":
    sys.exit(main())
