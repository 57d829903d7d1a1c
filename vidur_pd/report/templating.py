"""Jinja templates of pages: whatever is put into them is escaped."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


@cache
def environment() -> Environment:
    """Templates in this package; a name that they miss is an error."""
    made = Environment(
        loader=PackageLoader("vidur_pd.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    made.filters["in_script"] = in_script
    return made


def in_script(json_text: str) -> Markup:
    """JSON for a script element, which no text in it can close."""
    return Markup(json_text.replace("<", "\\u003c"))


def part(macro: str, /, *arguments: object) -> Markup:
    """A macro of ``parts.html`` as HTML."""
    module: Any = environment().get_template("parts.html").module
    return Markup(getattr(module, macro)(*arguments))
