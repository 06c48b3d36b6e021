"""The API's description (OpenAPI 3.1), from the models that requests are checked with."""

from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slipstream.server.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ResponsesRequest,
    TokenizeRequest,
)

BODIES = {
    "/v1/chat/completions": (ChatRequest, "Answer a chat."),
    "/v1/completions": (CompletionRequest, "Continue texts."),
    "/v1/responses": (ResponsesRequest, "Answer a chat, in the shape of responses."),
    "/tokenize": (TokenizeRequest, "Text to token ids."),
    "/detokenize": (DetokenizeRequest, "Token ids to text."),
}
READABLE = {
    "/health": "Whether the server is well.",
    "/metrics": "Figures for Prometheus.",
    "/props": "What is loaded.",
    "/v1/models": "The models; there is one.",
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def description() -> dict[str, Any]:
    """The whole document."""
    models = [(model, "validation") for model, _ in BODIES.values()]
    _, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    paths: dict[str, Any] = {path: {"get": _operation(text)} for path, text in READABLE.items()}
    for path, (model, text) in BODIES.items():
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
        paths[path] = {"post": {**_operation(text), "requestBody": {"required": True, "content": content}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Slipstream", "version": version("slipstream-decoding")},
        "paths": paths,
        "components": {
            "schemas": {**schemas["$defs"], "Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(text: str) -> dict[str, Any]:
    failed = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "summary": text,
        "responses": {
            "200": {"description": "As it should be."},
            "4XX": {"description": "What is wrong with the request.", "content": failed},
            "5XX": {"description": "The server is busy, or failed.", "content": failed},
        },
    }


async def answer(request: Request) -> Response:
    """`GET /openapi.json`."""
    return JSONResponse(description())
