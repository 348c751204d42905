"""Has Pipecat's parser read the frames in a file, one a line: `python -m ... FRAMES`."""

import json
import sys
from collections import Counter
from pathlib import Path

from pipecat.services.openai.realtime import events

from tests.clients.pipecat.scenarios import NOT_READ

counts: Counter[str] = Counter()
for frame in Path(sys.argv[1]).read_text().splitlines():
    kind = json.loads(frame)["type"]
    parsed = events.parse_server_event(frame)  # raises where a model refuses it
    assert (parsed is None) == (kind in NOT_READ), frame
    counts[kind] += 1
for kind, count in sorted(counts.items()):
    print(f"{count:6} {kind}")
