"""`python -m gander` is the `gander` command."""

from .cli import main

main()
