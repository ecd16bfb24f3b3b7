"""The reports' templates, and how they are filled in."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from .. import words

__all__ = ["render"]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__name__.rpartition(".")[0], "templates"),
        autoescape=select_autoescape(("html",)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {}  # in the order in which things are
    environment.filters |= {
        "place": words.place,
        "said": words.said,
        "of_bound": words.of_bound,
        "lacking": words.lacking,
        "decades": words.decades,
        "share": words.share,
        "code": code,
    }
    environment.globals |= {"repeat": words.repeat, "summary": words.summary}
    return environment


def code(text: str) -> str:
    """As code in a table of Markdown: on one line, and without what would end it."""
    return "`" + " ".join(text.split()).replace("`", "'").replace("|", "\\|") + "`"


def render(template: str, **context: Any) -> str:
    """The template, filled in."""
    return _environment().get_template(template).render(context)
