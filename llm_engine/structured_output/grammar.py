"""Grammars of replies and the JSON schemas in them, before compilation. Pure.

A grammar is text in llguidance's dialect of Lark, in which JSON schemas stand inline. JSON is
written on one line, with at most one space after a comma or colon. In free white space small models
loop (a page of newlines is valid JSON), and each of it costs a token.

`\\u` escapes are not allowed: half of a surrogate pair is valid JSON and breaks decoders, and every
character can stand as itself.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Self

from llm_engine.errors import RequestError

_WRITING: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "json_allowed_escapes": 'nrbtf\\"',
}
_MAX_DEPTH: Final = 64
"""Nesting of schemas in schemas. Real ones have far fewer; many more would exhaust the stack."""
_MAX_CHARS: Final = 120_000
"""Length of one schema: OpenAI's limit. The worst kind (properties that may all be left out) takes
time with the square of it, 10 s of one core for 400,000."""
_MAX_COMBINED: Final = 1000
"""Alternatives that result from combining others, each of an `allOf` with each: a second of
compiling. Six times five patterns, 1.4 kB, are 15,625."""
_MAX_VISITS: Final = 100_000
"""Schemas visited in the search for endless ones, 50 ms. A malicious one could take hours."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A JSON schema and the field of the request that it came from."""

    field: str
    text: str
    """JSON of the schema, with options for how values are written."""

    @classmethod
    def of(cls, schema: object, field: str, *, is_lenient: bool = False) -> Self:
        """Check a schema. `is_lenient` ignores keywords that can't be enforced, otherwise refused.

        Raises RequestError for what is not an object, nests too deeply, or is met by endless
        values only. All else is found when it is compiled.
        """
        if not isinstance(schema, dict):
            raise RequestError(field, "must be a JSON schema, an object")
        if _depth_exceeds(schema, _MAX_DEPTH):
            raise RequestError(field, f"nests more than {_MAX_DEPTH} deep")
        options = {**_WRITING, "lenient": is_lenient}
        try:
            text = json.dumps({**schema, "x-guidance": options}, allow_nan=False)
        except ValueError:
            raise RequestError(field, "has a number that JSON does not have") from None
        if len(text) > _MAX_CHARS:
            raise RequestError(field, f"has {len(text)} characters; {_MAX_CHARS} are too many")
        if _Alternatives(schema).num_combined() > _MAX_COMBINED:
            problem = f"combines alternatives in more than {_MAX_COMBINED} ways; use fewer of them"
            raise RequestError(field, problem)
        if _is_endless(schema):
            raise RequestError(field, "can't be met: every value of it would contain another one")
        return cls(field, text)


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that a reply must fit. Hashable: equal ones are compiled once."""

    lark: str
    """Text of the grammar, with a rule `start`."""
    schemas: tuple[Schema, ...] = ()
    """Schemas inside `lark`: when compiling fails, the one at fault is looked for."""
    has_text: bool = False
    """True if the reply may be free text, or begin with it; then it may have thoughts."""

    @classmethod
    def fitting(cls, schema: Schema) -> Self:
        """Grammar of JSON that fits a schema."""
        return cls(f"start: %json {schema.text}\n", (schema,))

    @classmethod
    def json(cls, schema: object, field: str = "grammar") -> Self:
        """Grammar of JSON that fits an unchecked schema. Raises RequestError as `Schema.of`."""
        return cls.fitting(Schema.of(schema, field))


ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}


def _depth_exceeds(value: object, limit: int) -> bool:
    if limit < 0:
        return True
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = list(value.values())
    elif isinstance(value, list):
        inner = value
    return any(_depth_exceeds(each, limit - 1) for each in inner)


def _is_endless(root: Mapping[str, Any]) -> bool:
    """True if every value that fits must contain another that fits the same schema.

    Schemas refer to each other, so those with a finite value are collected to a fixed point.
    """
    finite = _Finite()
    targets = {reference: _resolved(root, reference) for reference in _references(root)}
    while True:
        more = {each for each, target in targets.items() if finite.holds(target)}
        if not more:
            return not finite.holds(root)
        finite.references |= more
        for each in more:
            del targets[each]


class _Finite:
    """References known to have a finite value."""

    def __init__(self) -> None:
        self.references: set[str] = set()
        self._num_visited = 0

    def holds(self, schema: object) -> bool:
        """True if some value fits that needs only the known references, or if undecided."""
        self._num_visited += 1
        if not isinstance(schema, dict) or self._num_visited > _MAX_VISITS:
            return True
        reference = schema.get("$ref")
        is_local = isinstance(reference, str) and reference.startswith("#")
        if is_local and reference not in self.references:
            return False
        if not all(map(self.holds, _needed(schema))):
            return False
        choices = (schema.get(name) for name in ("anyOf", "oneOf"))
        return all(
            any(map(self.holds, choice))
            for choice in choices
            if isinstance(choice, list) and choice
        )


class _Alternatives:
    """Counts the alternatives of a schema once those of its parts are combined."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[str, int] = {}
        """Count by reference."""

    def num_combined(self) -> int:
        """Sum over all schemas inside."""
        return sum(
            prod(factors)
            for schema in _objects(self._root)
            if len(factors := [each for each in self._factors(schema, 0) if each > 1]) > 1
        )

    def _of(self, schema: object, depth: int) -> int:
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            return 1
        return min(_MAX_COMBINED + 1, prod(self._factors(schema, depth)))

    def _factors(self, schema: Mapping[str, Any], depth: int) -> Iterator[int]:
        for name in ("anyOf", "oneOf"):
            if isinstance(choice := schema.get(name), list):
                yield sum(self._of(each, depth + 1) for each in choice)
        if isinstance(parts := schema.get("allOf"), list):
            yield from (self._of(each, depth + 1) for each in parts)
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            if reference not in self._known:
                self._known[reference] = 1  # where it refers to itself
                self._known[reference] = self._of(_resolved(self._root, reference), depth + 1)
            yield self._known[reference]


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    """All objects in a value, itself included."""
    inner: Iterable[Any] = ()
    if isinstance(value, dict):
        yield value
        inner = value.values()
    elif isinstance(value, list):
        inner = value
    for each in inner:
        yield from _objects(each)


def _needed(schema: Mapping[str, Any]) -> Iterator[Any]:
    """Schemas of parts that every value must have."""
    required, properties = schema.get("required"), schema.get("properties")
    if isinstance(required, list) and isinstance(properties, dict):
        yield from (properties[name] for name in required if _is_key(name, properties))
    least = schema.get("minItems")
    if isinstance(least, int) and least > 0:
        prefix = schema.get("prefixItems")
        yield prefix[0] if isinstance(prefix, list) and prefix else schema.get("items")
    if isinstance(schema.get("allOf"), list):
        yield from schema["allOf"]


def _is_key(name: object, properties: Mapping[str, Any]) -> bool:
    return isinstance(name, str) and name in properties


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        reference = value.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            yield reference
        for each in value.values():
            yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def _resolved(root: Mapping[str, Any], reference: str) -> object:
    """Resolve a JSON pointer (RFC 6901); None where it points at nothing."""
    value: object = root
    for part in reference.lstrip("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif _is_index(name) and isinstance(value, list) and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _is_index(name: str) -> bool:
    # `int` raises ValueError for more than 4300 digits. A list of 10**9 elements is no schema.
    return len(name) < 10 and name.isdecimal()
