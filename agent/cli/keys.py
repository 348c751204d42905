"""`halfsec keys`: make, list and revoke the keys that open the server."""

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from agent.calls.state_store.load import open_state_store
from agent.calls.state_store.store import StateStoreError
from agent.config.sources import read_config, read_settings_file
from agent.errors import HalfsecError
from agent.http.auth.fleet_access import FleetAccess
from agent.http.auth.keys import Key, KeyFile, keys_path
from agent.http.auth.principal import KeyLimits
from latency_budget.account.clock import SystemClock, unix_ns

_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}
_LIFETIME: Final = re.compile(r"([1-9][0-9]{0,4})([mhd])")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands of `halfsec keys`."""
    actions = parser.add_subparsers(dest="action", metavar="{add,list,revoke}", required=True)
    add = actions.add_parser("add", help="make a key and print it, once")
    add.add_argument("name", help="whose it is, or what for")
    add.add_argument("--max-calls", type=int, metavar="N", help="calls at once with it")
    add.add_argument("--expires", metavar="TIME", help="after 30m, 12h or 90d it opens nothing new")
    add.add_argument(
        "--agents", metavar="NAMES", help="only calls with these [agents.NAME], and nothing else"
    )
    add.add_argument(
        "--dials",
        action="store_true",
        help="it may order telephone calls, to numbers in telephony.calls_to",
    )
    actions.add_parser("list", help="names and limits of all keys")
    revoke = actions.add_parser("revoke", help="take a key away, and end its calls")
    revoke.add_argument("name", help="its name, or its id")
    revoke.add_argument(
        "--config",
        metavar="FILE",
        help="settings file (halfsec.toml): agent.state_store there names the other servers",
    )


def main(options: argparse.Namespace) -> int:
    """Run the command. Raises KeyFileError, and HalfsecError for invalid limits."""
    file = KeyFile(keys_path())
    if options.action == "add":
        return _add(file, options)
    if options.action == "revoke":
        named = [key for key in file.read() if options.name in (key.name, key.token_id)]
        left = file.revoke(options.name)
        try:
            where = asyncio.run(_revoke_elsewhere((key.key_id for key in named), options.config))
        except HalfsecError as error:
            print(f"Revoked on this machine only: {error.message}", file=sys.stderr)
            print("Revoke it on the other machines too.", file=sys.stderr)
            return 1
        print(f"Revoked. A server that runs takes notice within seconds. Keys left: {left}.")
        print(where)
        if not left:
            print(
                "With access.require_key = auto the server stays closed. To open it to this "
                f"machine again, move {file.path} away and start it anew.",
            )
        return 0
    keys = file.read()
    for line in _listing(keys):
        print(line)
    return 0


async def _revoke_elsewhere(key_ids: Iterable[str], path: str | None) -> str:
    """Revoke keys on the other servers of the fleet, which the settings file `path`, or the one
    that is found without, names. Returns what was done, a sentence. Raises HalfsecError where the
    others are not known or could not be told."""
    text, file_name = read_settings_file(path, os.environ)
    config = read_config(path=path)
    store = open_state_store(config, SystemClock())
    try:
        if store.is_shared:
            for key_id in key_ids:
                await FleetAccess(store).revoke(key_id)
            origin = config.origins["agent.state_store"]
            return f"So do the servers that share agent.state_store ({origin})."
    except StateStoreError as error:
        raise HalfsecError(f"{error}.") from None
    finally:
        await store.close()
    if text:
        return f"No other server was told: {file_name} names no Redis as agent.state_store."
    return (
        f"No other server was told: there is no {file_name} in this directory; --config FILE names "
        "the one of the server."
    )


def _add(file: KeyFile, options: argparse.Namespace) -> int:
    if options.max_calls is not None and not 1 <= options.max_calls <= 10_000:
        raise HalfsecError(f"--max-calls is from 1 to 10000, not {options.max_calls}.")
    agents = tuple(name.strip() for name in (options.agents or "").split(",") if name.strip())
    if options.agents is not None and not agents:
        raise HalfsecError("--agents takes names, like front-desk,night-desk.")
    now_unix_s = unix_ns() // 10**9
    lifetime = None if options.expires is None else _lifetime(options.expires)
    expires_unix_s = None if lifetime is None else now_unix_s + int(lifetime.total_seconds())
    was_there = file.exists()
    limits = KeyLimits(options.max_calls, agents, options.dials)
    text = file.add(options.name, limits, now_unix_s, expires_unix_s)
    print(text)  # alone on stdout: KEY=$(halfsec keys add NAME)
    print(
        f"This is the key {options.name!r}. It is not shown again. Clients send it as "
        "Authorization: Bearer KEY; SDKs call it api_key; halfsec talk reads HALFSEC_API_KEY.",
        file=sys.stderr,
    )
    if not was_there:
        print("From now on the server asks for a key, also one that runs.", file=sys.stderr)
    return 0


def _lifetime(text: str) -> timedelta:
    found = _LIFETIME.fullmatch(text)
    if not found:
        raise HalfsecError(f"--expires takes a time like 30m, 12h or 90d, not {text!r}.")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _listing(keys: tuple[Key, ...]) -> list[str]:
    if not keys:
        return ["There is no key. halfsec keys add NAME makes one."]
    now_unix_s = unix_ns() / 1e9
    rows = [("NAME", "ID", "MADE", "EXPIRES", "CALLS", "DIALS", "AGENTS")]
    for key in keys:
        expires = "never" if key.expires_unix_s is None else _day(key.expires_unix_s)
        if key.expires_unix_s is not None and key.expires_unix_s <= now_unix_s:
            expires = f"expired {expires}"
        limits = key.limits
        most = "any" if limits.max_calls is None else str(limits.max_calls)
        agents = ",".join(limits.agents) or "all"
        dials = "yes" if limits.dials else "no"
        made = _day(key.created_unix_s)
        rows.append((key.name, key.token_id, made, expires, most, dials, agents))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _day(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M")
