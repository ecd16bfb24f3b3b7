"""Mistakes that a port can make, each beside the formula it is about, to show that the checks find them."""

from .catalogue import MUTANTS
from .mutant import Mutant
from .port import Port
from .tokenizer import TOKENIZERS, TokenizerMutant

__all__ = ["MUTANTS", "TOKENIZERS", "Mutant", "Port", "TokenizerMutant"]
