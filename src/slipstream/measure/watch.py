"""How a long measurement is watched, and how it is ended early."""


class Stopped(Exception):
    """Whoever watches wants the measurement to end; what was measured stays."""


class Watch:
    """Told what a measurement is doing. This one does not mind; a command line shows it and listens for Ctrl-C."""

    def begin(self, what: str, steps: int) -> None:
        """Another part of the measurement starts; it has so many steps."""

    def advance(self) -> None:
        """A step is done."""

    def pulse(self) -> None:
        """Called many times a second; raises `Stopped` to end the measurement."""
