"""Views of the values of lower rooms in a notebook. Those rooms draw nothing and know no tool.
`drawn_by` gives their types what notebooks ask for, and names the module that registers a renderer;
it is imported when a value is first shown.
"""

from __future__ import annotations

from functools import singledispatch
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markupsafe import Markup


@singledispatch
def view(value: object) -> Markup:
    """A value as HTML or SVG, by the renderer that `@view.register` has for its type. Raises
    TypeError where there is none."""
    raise TypeError(f"no renderer is registered for {type(value).__name__}")


def drawn_by(kind: type, renderer: str) -> None:
    """Shows values of `kind` in notebooks by the renderer that the module `renderer` registers."""

    def _repr_html_(self: object) -> Markup:
        import_module(renderer)
        return view(self)

    kind._repr_html_ = _repr_html_  # type: ignore[attr-defined]
