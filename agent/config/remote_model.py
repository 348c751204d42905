"""Address of a language model on a server of its own: `openai:http://HOST:PORT/v1#MODEL`."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from agent.errors import ConfigError

REMOTE_PREFIX: Final = "openai:"
"""Beginning of a `llm_engine.model` that another server runs."""

_FORM: Final = "openai:http://HOST:PORT/v1#MODEL"


@dataclass(frozen=True, slots=True)
class RemoteAddress:
    """Where a remote language model is, and what it is called there."""

    base_url: str
    """URL in front of `/chat/completions`, without a slash at the end."""
    model: str

    @classmethod
    def parse(cls, text: str) -> "RemoteAddress | None":
        """The address in a value of `llm_engine.model`; None for a model of this process.

        Raises ConfigError, which never quotes the value: there may be a key in it.
        """
        if not is_remote(text):
            return None
        url, _, model = text.removeprefix(REMOTE_PREFIX).partition("#")
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
            _ = parts.port
        except ValueError:
            is_url = False
        if not is_url or not url.isprintable() or " " in url:
            raise _wrong(f"needs the address of a server, like {_FORM}")
        if "@" in parts.netloc or parts.query:
            raise _wrong(
                "must not have credentials or a query in its address: it is shown in logs. Put the "
                "key into an environment variable and its name into llm_engine.api_key_env"
            )
        if not model.strip() or not model.isprintable():
            raise _wrong(f"needs the model's name on that server behind a #, like {_FORM}")
        return cls(url.rstrip("/"), model)


def is_remote(model: str) -> bool:
    """True if another server runs the model of this `llm_engine.model`."""
    return model.startswith(REMOTE_PREFIX)


def _wrong(problem: str) -> ConfigError:
    return ConfigError(f"llm_engine.model {problem}.", key="llm_engine.model")
