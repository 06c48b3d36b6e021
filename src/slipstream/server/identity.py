"""Names of answers."""

import secrets


def new_id(kind: str) -> str:
    """Such as `chatcmpl-3f9c...`: unique without a counter that somebody would have to keep."""
    return f"{kind}-{secrets.token_hex(12)}"
