"""Parser and validator of single setting values.

A field's annotation is the whole rule: `int`, `float`, `bool`, `str`, `X | None`, `Literal[...]`,
`tuple[X, ...]`, `dict[str, Any]`, `dict[str, str]`, a frozen dataclass (a table with exactly its
fields), `bool | PostgresUrl`, and any of them as `Annotated[X, Between(low, high)]` or
`Annotated[X, Matching(pattern, words)]`. A value from TOML has a type already and is taken
strictly; one from the environment or a flag is text.
"""

import re
import tomllib
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from latency_budget.storage.postgres_url import PostgresUrl

_SHOWN_CHARS: Final = 60
"""Longest quotation of a wrong value: enough to find it, not enough to bury the message."""

_LOGIN: Final = re.compile(r"(?<=:)(?!//)[^\s]*@|(?<=://)[^\s]*@")
"""User name and password of a refused address, which no message repeats."""

_INT_BOUND: Final = 10**18
"""Whole numbers have fewer digits than this: longer ones overflow where they are compared."""


class WrongValueError(ValueError):
    """Invalid value. The message is the predicate of a sentence: "must be ..."."""


@dataclass(frozen=True, slots=True)
class Between:
    """Bounds of a number, both included."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Matching:
    """A pattern that a text must match as a whole, and its description for messages."""

    pattern: str
    words: str


def read_value(kind: Any, value: object, *, is_text: bool) -> Any:
    """`value` as an instance of `kind`. Raises WrongValueError."""
    if get_origin(kind) is Annotated:
        inner, *rules = get_args(kind)
        return _check(rules, inner, value, is_text=is_text)
    if kind == bool | PostgresUrl:
        return _read_switch_or_url(value, is_text)
    if get_origin(kind) in (Union, types.UnionType):
        return _read_optional(kind, value, is_text=is_text)
    if get_origin(kind) is Literal:
        return _read_choice(get_args(kind), value)
    if get_origin(kind) is tuple:
        return _read_list(get_args(kind)[0], value, is_text=is_text)
    if get_origin(kind) is dict:
        return _read_table(value, is_text=is_text, has_texts=get_args(kind)[1] is str)
    if is_dataclass(kind):
        return _read_record(kind, value, is_text=is_text)
    return _SCALARS[kind](value, is_text)


def _check(rules: list[Any], inner: Any, value: object, *, is_text: bool) -> Any:
    result = read_value(inner, value, is_text=is_text)
    for rule in rules:
        if isinstance(rule, Between) and not rule.low <= result <= rule.high:
            raise WrongValueError(f"must be from {rule.low:g} to {rule.high:g}, not {result:g}")
        if isinstance(rule, Matching) and not re.fullmatch(rule.pattern, result):
            told = _LOGIN.sub("***@", result)
            raise WrongValueError(f"must be {rule.words}, not {shown(told)}")
    return result


def _read_optional(kind: Any, value: object, *, is_text: bool) -> Any:
    if value is None or (is_text and value == ""):
        return None
    (inner,) = (arg for arg in get_args(kind) if arg is not type(None))
    return read_value(inner, value, is_text=is_text)


def _read_choice(choices: tuple[object, ...], value: object) -> object:
    if value not in choices:
        listed = ", ".join(f'"{choice}"' for choice in choices)
        raise WrongValueError(f"must be one of {listed}, not {shown(value)}")
    return value


def _read_list(item_kind: Any, value: object, *, is_text: bool) -> tuple[Any, ...]:
    if is_text and str in (item_kind, *get_args(item_kind)) and not _is_list(str(value)):
        parts = (part.strip() for part in str(value).split(","))
        return tuple(read_value(item_kind, part, is_text=True) for part in parts if part)
    if is_text:
        value = _toml_value(str(value), "a list as TOML writes it")
    if not isinstance(value, list | tuple):
        raise WrongValueError(f"must be a list, not {shown(value)}")
    return tuple(read_value(item_kind, item, is_text=False) for item in value)


def _is_list(text: str) -> bool:
    return text.lstrip().startswith("[")


def _read_table(value: object, *, is_text: bool, has_texts: bool = False) -> dict[str, Any]:
    if is_text:
        value = _toml_value(str(value), "a table as TOML writes it")
    if not isinstance(value, dict):
        raise WrongValueError(f"must be a table, not {shown(value)}")
    if has_texts and not all(isinstance(each, str) for each in value.values()):
        raise WrongValueError(f"must be a table of texts, not {shown(value)}")
    return value


def _read_record(kind: Any, value: object, *, is_text: bool) -> Any:
    table = _read_table(value, is_text=is_text)
    names = [field.name for field in fields(kind)]
    if set(table) != set(names):
        listed = " and ".join(f'"{name}"' for name in names)
        raise WrongValueError(f"must be a table with {listed}, not {shown(value)}")
    kinds = get_type_hints(kind, include_extras=True)
    return kind(**{name: read_value(kinds[name], table[name], is_text=False) for name in names})


def _toml_value(text: str, words: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # also an integer of thousands of digits
        raise WrongValueError(f"must be {words}, not {shown(text)}") from None


def _read_bool(value: object, is_text: bool) -> bool:
    if isinstance(value, bool):
        return value
    if is_text and str(value).lower() in ("true", "1", "yes", "on"):
        return True
    if is_text and str(value).lower() in ("false", "0", "no", "off"):
        return False
    raise WrongValueError(f"must be true or false, not {shown(value)}")


def _read_switch_or_url(value: object, is_text: bool) -> bool | PostgresUrl:
    try:
        return _read_bool(value, is_text)
    except WrongValueError:
        pass
    try:
        return PostgresUrl(value if isinstance(value, str) else "")
    except ValueError as error:  # the value is not repeated: it may hold a password
        raise WrongValueError(f"{error}, or true or false") from None


def _read_int(value: object, is_text: bool) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _INT_BOUND:
        return value
    if is_text and re.fullmatch(r"\s*[-+]?[0-9]{1,18}\s*", str(value)):
        return int(str(value))
    raise WrongValueError(f"must be a whole number, not {shown(value)}")


def _read_float(value: object, is_text: bool) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value == value:
        try:
            return float(value)
        except OverflowError:  # an integer of hundreds of digits
            pass
    if is_text and re.fullmatch(r"\s*[-+]?[0-9]{0,18}\.?[0-9]{0,18}\s*", str(value)):
        try:
            return float(str(value))
        except ValueError:
            pass
    raise WrongValueError(f"must be a number, not {shown(value)}")


def _read_str(value: object, is_text: bool) -> str:
    if not isinstance(value, str):
        raise WrongValueError(f"must be text in quotes, not {shown(value)}")
    return value


_SCALARS: Final[dict[Any, Callable[[object, bool], object]]] = {
    bool: _read_bool,
    int: _read_int,
    float: _read_float,
    str: _read_str,
}


def shown(value: object) -> str:
    """`value` for a message: short, on one line."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
