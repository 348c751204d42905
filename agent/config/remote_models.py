"""References to models on other servers: `openai:http://HOST:PORT/v1#NAME`. Pure.

A reference is shown in logs and on pages, so it can't hold a secret: an address with a user name, a
password or a query is refused, and the message does not repeat it.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

REMOTE_PREFIX: Final = "openai:"
"""Beginning of a reference to a server with OpenAI's HTTP API."""

REMOTE_FORM: Final = "openai:http://HOST:PORT/v1#NAME"

RemoteSection = Literal["llm_engine", "asr", "tts"]
"""Section of the settings that may name a model on another server."""

REMOTE_SECTIONS: Final[tuple[RemoteSection, ...]] = get_args(RemoteSection)

_NAME: Final = re.compile(r"[^\s\x00-\x1f]{1,200}")
_URL: Final = re.compile(r"https?://[^\s/?#@\\]+(/[^\s?#@\\]*)?")


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model on another server."""

    url: str
    """Address of the API without a slash at its end, like http://gpu-box:8000/v1."""
    name: str
    """What the server calls the model."""

    def __str__(self) -> str:
        return f"{self.name} at {self.url}"


def is_remote(reference: str) -> bool:
    """True if a model's name in the settings is a reference to another server."""
    return reference.startswith(REMOTE_PREFIX)


def setting_of(section: RemoteSection) -> str:
    """Key of the setting in which the reference stands."""
    return f"{section}.{'voice' if section == 'tts' else 'model'}"


def parse_remote(reference: str, section: RemoteSection = "llm_engine") -> RemoteModel:
    """The model that a reference stands for. Raises ValueError with the predicate of a sentence,
    which quotes nothing of the reference. `section`: whose settings name the key."""
    url, mark, name = reference.removeprefix(REMOTE_PREFIX).partition("#")
    authority = url.partition("://")[2].partition("/")[0]
    if "@" in authority or "?" in url:
        raise ValueError(
            "must not hold a user name, a password or a query: an address is shown in logs. A key "
            f"belongs into an environment variable, which {section}.remote_key_env names"
        )
    if not (is_remote(reference) and mark and _NAME.fullmatch(name) and _URL.fullmatch(url)):
        raise ValueError(f"must be like {REMOTE_FORM}")
    try:
        urlsplit(url).port  # noqa: B018  # reading it checks it
    except ValueError:
        raise ValueError(f"must be like {REMOTE_FORM}, with a port of up to 65535") from None
    return RemoteModel(url.rstrip("/"), name)


def shown_model(reference: str) -> str:
    """Name of a model for those who ask which one answers: a remote one without its address."""
    return parse_remote(reference).name if is_remote(reference) else reference
