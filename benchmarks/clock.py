"""The clock that pytest-benchmark reads: the time that a worker took by its own clock, without what asking costs."""

__all__ = ["advance", "clock"]

_seconds = 0.0


def clock() -> float:
    """Seconds so far."""
    return _seconds


def advance(seconds: float) -> None:
    """A worker took so long."""
    global _seconds
    _seconds += seconds
