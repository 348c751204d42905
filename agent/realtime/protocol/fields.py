"""Reader of JSON fields that names the field's path in every error.

A reader takes what it knows and then calls `finish`, which refuses what is left: a field that is
misspelt and silently ignored costs its author an afternoon.
"""

from collections.abc import Collection, Iterator
from typing import Any, Final

from agent.errors import ClientError

MAX_ID_CHARS: Final = 128
"""Clients make ids of a prefix and a UUID; OpenAI's own limit of 512 stands for `event_id` only."""
MAX_TEXT_CHARS: Final = 1 << 17
"""About 32,000 tokens of English. An item is shown again, and a character may take 6 bytes as JSON:
this much stays below the 1 MiB that stock clients read in a frame. Lower refuses documents that
models with a long context can read."""


class Fields:
    """One JSON object. Every method raises ClientError with `param` set to the field's path.

    Methods that take a `default` return it for a missing field; without one the field is required.
    """

    __slots__ = ("_known", "_value", "path")

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        self._value: dict[str, Any] = value
        self._known: set[str] = set()
        self.path = path

    def __contains__(self, name: str) -> bool:
        """Present, be it null."""
        return name in self._value

    def at(self, name: str) -> str:
        """The path of a field, as error.param says it."""
        return f"{self.path}.{name}" if self.path else name

    def raw(self, name: str) -> Any:
        """The field as JSON gave it; None also where it is missing."""
        self._known.add(name)
        return self._value.get(name)

    def is_null(self, name: str) -> bool:
        return name in self and self.raw(name) is None

    def required(self, name: str) -> Any:
        if name not in self._value:
            raise ClientError(
                f"{self.at(name)!r} is missing.",
                code="missing_required_parameter",
                param=self.at(name),
            )
        return self.raw(name)

    def text(self, name: str, *, max_chars: int = MAX_TEXT_CHARS) -> str:
        value = self.required(name)
        if not isinstance(value, str):
            raise wrong_type(self.at(name), "a string", value)
        if len(value) > max_chars:
            raise invalid(
                self.at(name), f"has {len(value)} characters; at most {max_chars} are taken"
            )
        return value

    def optional_text(self, name: str, *, max_chars: int = MAX_TEXT_CHARS) -> str | None:
        """None where the field is missing or null."""
        return None if self.raw(name) is None else self.text(name, max_chars=max_chars)

    def choice(self, name: str, options: Collection[str]) -> str:
        value = self.text(name)
        if value not in options:
            allowed = ", ".join(repr(option) for option in options)
            raise invalid(self.at(name), f"is {value[:60]!r}; it can be {allowed}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        if self.raw(name) is None:
            return default
        value = self.raw(name)
        if not isinstance(value, bool):
            raise wrong_type(self.at(name), "true or false", value)
        return value

    def integer(self, name: str, low: int, high: int) -> int:
        value = self.required(name)
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(self.at(name), "an integer", value)
        if not low <= value <= high:
            raise invalid(self.at(name), f"must lie within {low}..{high}")
        return value

    def number(self, name: str, low: float, high: float) -> float:
        value = self.required(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(self.at(name), "a number", value)
        if not low <= value <= high:
            raise invalid(self.at(name), f"must lie within {low}..{high}")
        return float(value)

    def inside(self, name: str) -> "Fields | None":
        """The object in a field, or None where it is missing."""
        return Fields(self.required(name), self.at(name)) if name in self else None

    def array(self, name: str, *, max_items: int) -> Iterator[tuple[str, Any]]:
        """Path and value of each element."""
        value = self.required(name)
        if not isinstance(value, list):
            raise wrong_type(self.at(name), "an array", value)
        if len(value) > max_items:
            raise invalid(self.at(name), f"has {len(value)} elements; at most {max_items} fit")
        return ((f"{self.at(name)}[{index}]", element) for index, element in enumerate(value))

    def finish(self) -> None:
        """Refuse fields that were not read."""
        for name in self._value:
            if name not in self._known:
                path = self.at(name)[:200]
                raise ClientError(
                    f"There is no parameter {path!r}.", code="unknown_parameter", param=path
                )


def invalid(path: str, complaint: str) -> ClientError:
    return ClientError(f"{path!r} {complaint}.", code="invalid_value", param=path)


def wrong_type(path: str, wanted: str, value: object) -> ClientError:
    return ClientError(
        f"{path!r} must be {wanted}, not {_json_name(value)}.",
        code="invalid_value",
        param=path or None,
    )


def _json_name(value: object) -> str:
    names: dict[type, str] = {
        dict: "an object", list: "an array", str: "a string", bool: "a boolean",
        type(None): "null",
    }  # fmt: skip
    return names.get(type(value), "a number")
