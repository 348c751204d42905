"""One tool of the server, wherever it runs, and the texts that the model gets to read of it."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

NAME: Final = re.compile("[a-zA-Z0-9_-]{1,64}")
"""Form of a tool's name, as in OpenAI's API."""

NAME_RULE: Final = 'a tool\'s name has 1 to 64 letters, digits, "_" and "-"'


class ServerTool(Protocol):
    """A tool that runs on the server. Belongs to the server's event loop."""

    @property
    def name(self) -> str: ...

    @property
    def definition(self) -> str:
        """Definition as JSON, in the form of `ports.Tools`."""
        ...

    @property
    def timeout_s(self) -> float: ...

    @property
    def is_background(self) -> bool:
        """True if it goes on beside the conversation, which does not wait for it."""
        ...

    async def call(self, arguments: str) -> str:
        """Run the tool with these arguments, an object in JSON. Returns its result. Raises
        ToolError with the message for the model, or any other exception. Cancelling stops the tool,
        or gives it up."""
        ...


def definition_of(name: str, description: str, parameters: Mapping[str, Any]) -> str:
    """Definition as JSON, in the form of `ports.Tools`."""
    function = {"name": name, "description": description, "parameters": parameters}
    return json.dumps(function, ensure_ascii=False)


def shortened(text: str, max_chars: int) -> str:
    """Result for the model, cut to `max_chars`."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]} [cut: the first {max_chars} of {len(text)} characters]"


def one_line(problem: object, max_chars: int = 300) -> str:
    """A message without line breaks and whatever else moves a terminal, not too long."""
    # Cut first: it may have any length.
    words = str(problem)[: 4 * max_chars].split()
    text = "".join(each if each.isprintable() else "?" for each in " ".join(words))
    return text if len(text) <= max_chars else f"{text[: max_chars - 3]}..."
