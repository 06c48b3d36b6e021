"""What goes wrong, in the shape that OpenAI's clients know."""

import json
import math
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slipstream.errors import (
    BusyError,
    ChatTemplateError,
    ContextLimitError,
    GrammarError,
    SlipstreamError,
    TooSlowError,
    UnsupportedModelError,
    UsageError,
)

STATUS: dict[type[SlipstreamError], int] = {
    UsageError: 400,
    ContextLimitError: 400,
    ChatTemplateError: 400,
    GrammarError: 400,
    UnsupportedModelError: 400,
    BusyError: 503,
    TooSlowError: 504,
}
"""By what the engine raises; all else is 500."""
CODES = {ContextLimitError: "context_length_exceeded", BusyError: "server_busy", TooSlowError: "timeout"}
RETRY_AFTER = 2
"""Seconds, where nothing better is known."""


class ApiError(Exception):
    """A request that cannot be answered.

    param: the field that is to blame; code: for programs
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code


def error_body(error: Exception) -> tuple[int, dict[str, Any]]:
    """(HTTP status, body) for anything that `SlipstreamError` or `ApiError` says."""
    if isinstance(error, ApiError):
        return error.status, _body(error.status, error.message, error.param, error.code)
    status = next((status for kind, status in STATUS.items() if isinstance(error, kind)), 500)
    code = next((code for kind, code in CODES.items() if isinstance(error, kind)), None)
    return status, _body(status, str(error), None, code)


def _body(status: int, message: str, param: str | None, code: str | None) -> dict[str, Any]:
    kinds = {401: "authentication_error", 404: "not_found_error", 503: "overloaded_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def response(error: Exception) -> Response:
    """The error as an answer."""
    status, body = error_body(error)
    headers = {"Retry-After": str(RETRY_AFTER)} if status == 503 else None
    return JSONResponse(body, status, headers)


async def on_error(request: Request, error: Exception) -> Response:
    """Exception handler for `ApiError` and `SlipstreamError`."""
    return response(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Exception handler for what Starlette refuses: unknown paths, wrong methods."""
    assert isinstance(error, HTTPException)
    known = {404: f"There is no {request.url.path} here.", 405: f"{request.method} is not for {request.url.path}."}
    answer = response(ApiError(error.status_code, known.get(error.status_code, error.detail)))
    answer.headers.update(error.headers or {})
    return answer


def failure() -> Response:
    """The answer where we made a mistake."""
    return response(ApiError(500, "The server made a mistake; its log says which."))


_KINDS = ("str", "int", "float", "bool")
_MOST_TOLD = 100
"""Characters of what a client sent that an error repeats."""


def first_problem(error: ValidationError) -> ApiError:
    """What is wrong, in a sentence that names the field; of several things the one that we said ourselves."""
    problems = error.errors(include_url=False, include_input=False)
    # of the members of a union the one that was meant: it got further than to find another kind of value
    problem = max(
        problems, key=lambda one: (one["type"] == "value_error", not one["type"].endswith("_type"), len(one["loc"]))
    )
    # between fields and indices pydantic names the member of a union that it tried
    parts = [str(part) for part in problem["loc"]]
    named = [part for part in parts if part not in _KINDS and "[" not in part and "-" not in part]
    place = ".".join(named)[:_MOST_TOLD]
    message = problem["msg"].removeprefix("Value error, ").rstrip(".")
    if problem["type"] in ("model_type", "dict_type"):
        message = "Input should be an object"  # pydantic speaks of Python's
    return ApiError(400, f"{place}: {message}." if place else f"{message}.", param=place or None)


def _no_number(name: str) -> Any:
    raise ApiError(400, f"The request is not JSON in UTF-8: {name} is no number.")


def _finite(digits: str) -> float:
    """Raises ApiError for what is JSON and too large for any computer: an answer could not repeat it."""
    number = float(digits)
    if math.isinf(number):
        raise ApiError(400, f"The request has a number that is too large, {digits[:_MOST_TOLD]}.")
    return number


def parsed(body: bytes) -> Any:
    """JSON in UTF-8 from a request: finite numbers, and text that is Unicode. Raises ApiError for anything else."""
    try:
        content = json.loads(body.decode("utf-8-sig"), parse_constant=_no_number, parse_float=_finite)
        if b"\\u" in body:
            json.dumps(content, ensure_ascii=False).encode()  # half a pair of escapes is no text
        return content
    except RecursionError:
        raise ApiError(400, "The request is nested too deeply.") from None
    except ValueError as error:  # not JSON, or not UTF-8
        raise ApiError(400, f"The request is not JSON in UTF-8: {error}.") from None
