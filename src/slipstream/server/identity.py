"""Names of answers, and of those who ask."""

import hashlib
import secrets

from starlette.requests import Request

USER = "slipstream.user"
"""Where a request's scope says who asks."""


def new_id(kind: str) -> str:
    """Such as `chatcmpl-3f9c...`: unique without a counter that somebody would have to keep."""
    return f"{kind}-{secrets.token_hex(12)}"


def user_named(key: str) -> str:
    """Who has a key: a name that is the same tomorrow and does not give the key away."""
    return hashlib.sha256(b"slipstream user\0" + key.encode()).hexdigest()[:32]


def user_of(request: Request) -> str:
    """Who asks; "" on a server without keys."""
    user: str = request.scope.get(USER, "")
    return user
