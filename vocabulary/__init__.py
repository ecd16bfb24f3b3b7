"""The World tokenizer's vocabulary: reading it, finding it, and writing it in the forms that other programs read."""

from .export import END_OF_TEXT_SPELLED, FORMS, export
from .exported import Exported, read_exported
from .find import find_vocabulary
from .read import read_vocabulary
from .vocabulary import END_OF_TEXT, Vocabulary

__all__ = [
    "END_OF_TEXT",
    "END_OF_TEXT_SPELLED",
    "FORMS",
    "Exported",
    "Vocabulary",
    "export",
    "find_vocabulary",
    "read_exported",
    "read_vocabulary",
]
