"""A program that a test will stop."""

import signal
import subprocess
from collections.abc import Sequence
from typing import Any

__all__ = ["started"]


def started(words: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
    """The process. It hears Ctrl-C, even if the tests run in the background of a shell, which has them ignore it."""
    return subprocess.Popen(words, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options)
