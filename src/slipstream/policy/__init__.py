"""Who drafts and how much. It can change how fast tokens come, never which."""

from slipstream.policy.adaptive import AdaptivePolicy
from slipstream.policy.bank import DEFAULT_MAX_SLOWDOWN, ExcessBank
from slipstream.policy.calibration import Acceptance
from slipstream.policy.costs import CostTable
from slipstream.policy.fixed import FixedLength
from slipstream.policy.store import Store

__all__ = ["DEFAULT_MAX_SLOWDOWN", "Acceptance", "AdaptivePolicy", "CostTable", "ExcessBank", "FixedLength", "Store"]
