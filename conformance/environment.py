"""What a run ran on: versions that its figures may depend on."""

import platform
from importlib.metadata import version

__all__ = ["environment"]


def environment() -> dict[str, str]:
    """Of Python, of the platform, and of the packages that compute."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{package: version(package) for package in ("numpy", "torch")},
    }
