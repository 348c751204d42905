"""`GET /openapi.json`: the OpenAPI 3.1 description of the HTTP endpoints.

It is written by hand, as data: a YAML file for each part of the API in `openapi_parts/`, put
together here. Tests compare it with the routes, and schemathesis asks what it promises.
"""

import asyncio
import json
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

_PARTS: Final = Path(__file__).resolve().parent / "openapi_parts"


@cache
def description() -> dict[str, Any]:
    """The whole document. Takes a tenth of a second the first time.

    Raises ValueError where two files describe the same thing.
    """
    import yaml  # imported here: the server needs it for this request only

    whole: dict[str, Any] = {"openapi": "3.1.0"}
    for path in sorted(_PARTS.glob("*.yaml")):
        _lay_in(whole, yaml.safe_load(path.read_text(encoding="utf-8")) or {}, path.name)
    whole["info"]["version"] = version("halfsec")
    common_responses = whole.pop("x-common-responses")
    for operations in whole["paths"].values():
        for operation in operations.values():
            if operation.get("security") != []:
                operation["responses"] = {**common_responses, **operation["responses"]}
    return whole


def _lay_in(whole: dict[str, Any], part: dict[str, Any], where: str) -> None:
    for name, value in part.items():
        held = whole.setdefault(name, value)
        if held is value:
            continue
        if not isinstance(held, dict) or not isinstance(value, dict):
            raise ValueError(f"{where}: {name} is described elsewhere as well")
        _lay_in(held, value, where)


@cache
def _document() -> bytes:
    return json.dumps(description(), ensure_ascii=False).encode()


async def openapi_json(request: Request) -> Response:
    return Response(await asyncio.to_thread(_document), media_type="application/json")
