"""Reference of the fields of OpenAI's sessions and responses, from the protocol's own table.

`tests/agent/session/test_field_support.py` walks OpenAI's published types and compares each row
with what the service does.
"""

from typing import Final

from agent.realtime.protocol.field_support import (
    RESPONSE,
    SESSION,
    TRANSCRIPTION_SESSION,
    FieldSupport,
)

_HEAD: Final = """\
# Fields of sessions and responses

What a client configures is **obeyed**, **refused** with an error that names the field and the
remedy, or **ignored**: then the session shows what holds (`tracing: null`), and a client with
extensions gets a `halfsec.notice`:

```json
{
  "type": "halfsec.notice",
  "event_id": "event_12",
  "param": "session.tracing",
  "message": "There is no dashboard of OpenAI's here: turns are traced by ..."
}
```

A field that OpenAI does not have is refused (`unknown_parameter`), and so is a value that is none
of the allowed ones, which the error names. The same holds for `session.update`, client secrets,
`/v1/realtime/calls` and `response.create`.

`audio.input.turn_detection[server_vad].threshold` is the field `threshold` where
`audio.input.turn_detection` has the type `server_vad`. A row stands for all that lies inside of it
and has no row of its own. The rows are compared with OpenAI's published types (`openai` of PyPI,
`openai.types.realtime`) and with what the service does, field by field.
"""


def page() -> str:
    """Markdown of the page."""
    tables = {
        "A session": SESSION,
        "A transcription session": TRANSCRIPTION_SESSION,
        "A response": RESPONSE,
    }
    parts = [_HEAD]
    for title, table in tables.items():
        parts += [f"## {title}\n", "| field | | what it does |", "| --- | --- | --- |"]
        parts += [_row(row) for row in sorted(table, key=lambda row: row.path)]
        parts.append("")
    return "\n".join(parts)


def _row(row: FieldSupport) -> str:
    support = row.support if row.support == "obeyed" else f"**{row.support}**"
    return f"| `{row.path}` | {support} | {row.text.replace('|', '&#124;')} |"
