"""Sequences, rounds, text: the loop that drafts, verifies and commits."""

from slipstream.engine.completion import Completion, Timings, Token
from slipstream.engine.conversation import Conversation, Turn
from slipstream.engine.engine import DEFAULT_NUM_DRAFT_TOKENS, Engine
from slipstream.engine.loading import ModelOptions
from slipstream.engine.options import GenerationOptions, Message, Prompt, SpeculationOptions
from slipstream.engine.stream import Stream

__all__ = [
    "DEFAULT_NUM_DRAFT_TOKENS",
    "Completion",
    "Conversation",
    "Engine",
    "GenerationOptions",
    "Message",
    "ModelOptions",
    "Prompt",
    "SpeculationOptions",
    "Stream",
    "Timings",
    "Token",
    "Turn",
]
