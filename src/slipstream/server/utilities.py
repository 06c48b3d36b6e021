"""The small endpoints: what is served, whether it is well, and text to tokens and back."""

from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from slipstream.engine import GenerationOptions
from slipstream.server.bodies import body_of
from slipstream.server.errors import ApiError
from slipstream.server.requests import DetokenizeRequest, TokenizeRequest
from slipstream.server.service import Service
from slipstream.server.whole import rendered


class Utilities:
    """One method for each endpoint."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._one_at_a_time = CapacityLimiter(1)  # long texts must not take the threads of generation

    async def health(self, request: Request) -> Response:
        """200 while the engine runs."""
        load = self._service.worker.load
        alive = self._service.worker.is_alive
        body = {
            "status": "ok" if alive else "error",
            "active": load.active,
            "waiting": load.waiting,
            "slots": load.parallel,
        }
        return JSONResponse(body, 200 if alive else 503)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self._service.name:
            raise ApiError(404, f"There is no model {name!r} here; this server has {self._service.name}.")
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        service = self._service
        return {
            "id": service.name,
            "object": "model",
            "created": service.started,
            "owned_by": "slipstream",
            "meta": {
                "n_vocab": service.vocabulary.size,
                "n_ctx": service.engine.target.context_length,
                "runtime": service.engine.target.runtime,
            },
        }

    async def props(self, request: Request) -> Response:
        """What is loaded and how it samples when a request says nothing."""
        engine, defaults = self._service.engine, self._service.engine.defaults
        names = [name for name in GenerationOptions.__annotations__ if hasattr(defaults, name)]
        return JSONResponse(
            {
                "model": self._service.name,
                "runtime": engine.target.runtime,
                "context_length": engine.target.context_length,
                "parallel": self._service.worker.load.parallel,
                "total_slots": self._service.worker.load.parallel,
                "drafter": engine.drafter_name,
                "default_generation_settings": {name: getattr(defaults, name) for name in names},
                "chat_template": None if engine.template is None else engine.template.source,
                "speculation": self._service.worker.policy,
                "notices": engine.notices,
            }
        )

    async def tokenize(self, request: Request) -> Response:
        asked = await body_of(request, TokenizeRequest, self._service.limits.body)
        answer = await to_thread.run_sync(self._tokens, asked, limiter=self._one_at_a_time)
        return Response(answer, media_type="application/json")

    def _tokens(self, asked: TokenizeRequest) -> bytes:
        tokenize, spelling = self._service.vocabulary.tokenize, self._service.spelling
        ids = tokenize(asked.content, add_bos=asked.add_special, parse_special=asked.parse_special)
        pieces = [{"id": one, "piece": spelling(one).text} for one in ids] if asked.with_pieces else ids
        return rendered({"tokens": pieces}, levels=1)

    async def detokenize(self, request: Request) -> Response:
        asked = await body_of(request, DetokenizeRequest, self._service.limits.body)
        vocabulary = self._service.vocabulary
        if asked.tokens and not 0 <= min(asked.tokens) <= max(asked.tokens) < vocabulary.size:
            raise ApiError(400, f"tokens: ids must be between 0 and {vocabulary.size - 1}.", param="tokens")

        def spell() -> bytes:
            pieces = [vocabulary.token_bytes(token) or vocabulary.token_name(token).encode() for token in asked.tokens]
            return rendered({"content": b"".join(pieces).decode("utf-8", "replace")})

        answer = await to_thread.run_sync(spell, limiter=self._one_at_a_time)
        return Response(answer, media_type="application/json")
