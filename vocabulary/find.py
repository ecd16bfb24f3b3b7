"""Finds a vocabulary: the user's file, or the one that an installed package brings."""

from importlib.util import find_spec
from pathlib import Path

from ..errors import InputError
from .read import read_vocabulary
from .vocabulary import Vocabulary

__all__ = ["find_vocabulary"]

FILE = "rwkv_vocab_v20230424.txt"

# What to install, and the module it is installed as. All three hold the same tokens.
PACKAGES = {"rwkv": "rwkv", "rwkv-x": "rwkv_x", "pyrwkv-tokenizer": "pyrwkv_tokenizer"}


def find_vocabulary(path: str | None = None) -> Vocabulary:
    """The vocabulary at `path`; without one, that of an installed PyPI rwkv, rwkv-x or pyrwkv-tokenizer.

    These packages are looked at, not imported: two of them would import torch and compile kernels. InputError if none
    is installed.
    """
    if path is not None:
        return read_vocabulary(path)
    for module in PACKAGES.values():
        spec = find_spec(module)
        for folder in (spec and spec.submodule_search_locations) or ():
            file = Path(folder) / FILE
            if file.is_file():
                return read_vocabulary(file)
    raise InputError(
        "no vocabulary found",
        expected=f"a file {FILE}, or one of the packages that bring it: {', '.join(PACKAGES)}",
        mend="pip install pyrwkv-tokenizer, or name the file with --vocab FILE",
    )
