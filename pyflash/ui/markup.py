"""HTML and SVG: a type of their own, `Markup`. Everything else is text, and escaped."""

from __future__ import annotations

from markupsafe import Markup, escape

_EMPTY = ("img", "input", "rect")  # SVG and HTML agree on these


def element(tag: str, *content: object, **attributes: object) -> Markup:
    """<tag attribute="value">content</tag>. Content that is not Markup is escaped, and so is the
    value of each attribute; None leaves an attribute out. An underscore in its name stands for a
    hyphen, and `class_` for class."""
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _EMPTY and not content:
        return Markup(f"<{tag}{named}/>")
    return Markup(f"<{tag}{named}>{joined(*content)}</{tag}>")


def joined(*content: object) -> Markup:
    """One after the other."""
    return Markup("".join(map(escape, content)))
