"""One tool of the server, wherever it runs, and the texts that the model gets to read of it."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

NAME: Final = re.compile("[a-zA-Z0-9_-]{1,64}")
"""As OpenAI's API has the names of functions."""

NAME_RULE: Final = 'a tool\'s name has 1 to 64 letters, digits, "_" and "-"'


class ServerTool(Protocol):
    """A tool that runs on the server. Belongs to the server's event loop."""

    @property
    def name(self) -> str: ...

    @property
    def definition(self) -> str:
        """As `ports.Tools` has them."""
        ...

    @property
    def timeout_s(self) -> float: ...

    async def call(self, arguments: str) -> str:
        """What it gave to these arguments, an object in JSON. Raises ToolError with what the model
        is to be told, or whatever a tool may raise. Cancelling stops it, or gives it up."""
        ...


def definition_of(name: str, description: str, parameters: Mapping[str, Any]) -> str:
    """As `ports.Tools` has it."""
    function = {"name": name, "description": description, "parameters": parameters}
    return json.dumps(function, ensure_ascii=False)


def shortened(text: str, max_chars: int) -> str:
    """A result as the model is told of it."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]} [cut: the first {max_chars} of {len(text)} characters]"


def one_line(problem: object, max_chars: int = 300) -> str:
    """A message without line breaks and whatever else moves a terminal, not too long."""
    # Cut first: it may have any length.
    words = str(problem)[: 4 * max_chars].split()
    text = "".join(each if each.isprintable() else "?" for each in " ".join(words))
    return text if len(text) <= max_chars else f"{text[: max_chars - 3]}..."
