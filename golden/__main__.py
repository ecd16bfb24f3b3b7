"""`python -m gander.golden`: make the recipes' list, the golden traces and their manifest afresh."""

from .listing import write_listing
from .store import store

write_listing()
store()
