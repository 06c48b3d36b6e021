"""The command line: `slipstream run`, `chat`, `pull` and `models`.

Importing this package loads neither numpy nor a model library: `slipstream --help` must come at once.
"""

import os
import signal
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command line of this process and exit. Ctrl-C is quiet from here on, while modules load, too."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # until `interrupts.install`
    from slipstream.cli import app

    app.main()
