"""Tests of what another package does: skipped where it is not installed, with the reason."""

import importlib.util

import pytest

__all__ = ["needs"]


def needs(*modules: str) -> pytest.MarkDecorator:
    """The mark."""
    absent = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.mark.skipif(bool(absent), reason=f"{', '.join(absent)} is not installed")
