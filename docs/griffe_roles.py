"""Shows cross-references of docstrings as code in the API reference: Markdown knows no roles."""

from __future__ import annotations

import re
from typing import Any

import griffe
from griffe._internal.docstrings import numpy as numpy_style

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?(?:[\w.]*\.)?(\w+)`")
# Markdown needs no second colon before an indented block.
_LITERAL_BLOCK = re.compile(r"::$", re.MULTILINE)
# One backtick means a name in the docstrings here, and two mean code; Markdown shows both as code.
_DOUBLE_TICKS = re.compile(r"``")

# Types are prose, such as "array-like, shape (n,) or (n, d)": read as Python they come out garbled.
numpy_style.parse_docstring_annotation = lambda annotation, *_, **__: annotation


class Roles(griffe.Extension):
    """Rewrites the docstrings of every object after it was read."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Replace roles by names, and ``::`` by ``:``."""
        del kwargs
        if obj.docstring is not None:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            text = _DOUBLE_TICKS.sub("`", text)
            obj.docstring.value = _LITERAL_BLOCK.sub(":", text)
