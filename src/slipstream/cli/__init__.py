"""The command line: `slipstream run`, `chat`, `pull` and `models`.

Importing this package loads neither numpy nor a model library: `slipstream --help` must come at once.
"""

from slipstream.cli.app import main

__all__ = ["main"]
