"""Fallback routes: 405 for a known path with another method, 404 for unknown paths below `/v1`.
 The pages' mount at the end would take both for missing files.

A parameter of the kind `any` takes the rest of a path, whatever it holds."""

from collections.abc import Iterable, Iterator

from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send


def with_refusals(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """Yield the routes, each HTTP route followed by a 405 for other methods, and a 404 for other
    paths of the API at the end."""
    for route in routes:
        yield route
        if isinstance(route, Route):
            yield Route(route.path, _OtherMethods(sorted(route.methods or ())))
    yield Route("/v1/{path:any}", _UnknownPath())


class _Anything(Convertor[str]):
    """A path convertor like starlette's `path`, line breaks included: clients may encode them."""

    regex = r"[\s\S]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any", _Anything())


class _OtherMethods:
    def __init__(self, allowed: list[str]) -> None:
        self._allowed = ", ".join(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = f"This path does not take {scope['method']}; it takes {self._allowed}."
        refusal = _refusal(405, message, "method_not_allowed")
        refusal.headers["allow"] = self._allowed
        await refusal(scope, receive, send)


class _UnknownPath:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = "There is nothing at this path; /openapi.json describes what there is."
        await _refusal(404, message, "not_found")(scope, receive, send)


def _refusal(status: int, message: str, code: str) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return JSONResponse({"error": error}, status)
