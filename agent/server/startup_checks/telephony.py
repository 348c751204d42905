"""Startup check of the telephone settings: do they fit together?"""

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from agent.config.schema import Config
from agent.config.suggestions import nearest
from agent.config.telephony import E164
from agent.errors import ConfigError
from agent.http.peer_address import AUDIOSOCKET_ALLOW, asterisk_networks

SIP_URI: Final = r"sips?:[^\s@<>\"]+@[^\s@<>\"]+"


def check_telephony(config: Config) -> None:
    """Check the telephone settings. Raises ConfigError for the first problem."""
    for key, problem in telephony_problems(config):
        raise ConfigError(f"{key} {problem}", key=key)


def telephony_problems(config: Config) -> Iterator[tuple[str, str]]:
    """All problems: the key of the setting at fault, and the predicate of a sentence."""
    settings = config.telephony
    if not _has_port(settings.public_url):
        yield "telephony.public_url", f"is {settings.public_url!r}: ports go from 1 to 65535."
    for number, agent in settings.numbers.items():
        if agent not in config.agents:
            yield "telephony.numbers", f"has {number} answered by {_no_agent(agent, config)}"
    if settings.audiosocket_agent and settings.audiosocket_agent not in config.agents:
        yield "telephony.audiosocket_agent", f"is {_no_agent(settings.audiosocket_agent, config)}"
    if settings.audiosocket_port:
        try:
            asterisk_networks(settings.audiosocket_allow)
        except ConfigError as error:
            yield AUDIOSOCKET_ALLOW, error.message.removeprefix(f"{AUDIOSOCKET_ALLOW}: ")
    for name, target in settings.transfers.items():
        if re.fullmatch(SIP_URI, target):
            continue
        if not re.fullmatch(E164, target):
            yield (
                "telephony.transfers",
                f"has {name!r} at {target!r}: give a telephone number with its country, like "
                "+493012345, or an address like sip:sales@example.com.",
            )
        elif not settings.may_call(target, unless_listed=True):
            yield (
                "telephony.transfers",
                f"has {name!r} at {target}, which begins with none of telephony.calls_to "
                f"({', '.join(settings.calls_to)}): add the beginning of it there.",
            )


def _has_port(url: str) -> bool:
    """True if the URL names no port or a valid one."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def _no_agent(name: str, config: Config) -> str:
    known = list(config.agents)
    return f"{name!r}, and there is no such agent; there are {', '.join(known)}." + nearest(
        name, known
    )
