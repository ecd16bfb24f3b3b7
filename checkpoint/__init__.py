"""Checkpoints: naming schemes, shape inference, census, conversion, and synthetic models."""

from .model import Checkpoint, Config

__all__ = ["Checkpoint", "Config"]
