"""How much is drafted. It can change how fast tokens come, never which."""

from slipstream.policy.fixed import FixedLength

__all__ = ["FixedLength"]
