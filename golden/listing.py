"""`recipes.json`: every tensor of every golden model, for those who make the models in another language."""

import json

from ..checkpoint import shapes
from .manifest import GOLDEN
from .recipes import RECIPES

__all__ = ["LISTING", "listing", "write_listing"]

LISTING = GOLDEN / "recipes.json"


def listing() -> str:
    """The list as text. `RECIPES.md` says what its keys mean."""
    models = []
    for name, recipe in RECIPES.items():
        tensors = []
        for tensor, shape in shapes(recipe.config).items():
            fill = recipe.fill(tensor)
            parts = [[part.axis, part.start, part.stop, part.scale, part.offset] for part in fill.parts]
            entry = {"name": tensor, "shape": shape, "scale": fill.scale, "offset": fill.offset, "parts": parts}
            tensors.append(json.dumps(entry))
        models.append(f'"{name}": {{"seed": {recipe.seed}, "tensors": [\n' + ",\n".join(tensors) + "\n]}")
    return "{\n" + ",\n".join(models) + "\n}\n"


def write_listing() -> None:
    """Write the list where it is kept."""
    LISTING.write_text(listing(), encoding="utf-8")
