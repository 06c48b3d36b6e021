"""Drafters: one file each. Nothing here can change which tokens come out."""

from slipstream.core.protocols import Growth
from slipstream.draft.base import BaseDrafter, TextDrafter
from slipstream.draft.draft_model import ModelDrafter
from slipstream.draft.forced import ForcedDrafter
from slipstream.draft.head import HeadDrafter
from slipstream.draft.layers import LayersDrafter
from slipstream.draft.other_tokenizer import OtherTokenizerDrafter
from slipstream.draft.prediction import PredictionDrafter
from slipstream.draft.recycling import RecyclingDrafter
from slipstream.draft.suffix import SuffixDrafter

__all__ = [
    "BaseDrafter",
    "ForcedDrafter",
    "Growth",
    "HeadDrafter",
    "LayersDrafter",
    "ModelDrafter",
    "OtherTokenizerDrafter",
    "PredictionDrafter",
    "RecyclingDrafter",
    "SuffixDrafter",
    "TextDrafter",
]
