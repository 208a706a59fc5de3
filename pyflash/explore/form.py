"""The controls of the page: an HTML form, which works without a script."""

from __future__ import annotations

from markupsafe import Markup

from pyflash.config import ARCHS, FAMILIES
from pyflash.config.fields import Field, describe
from pyflash.explore.state import (
    FAMILY,
    FIELDS_OF,
    PROBLEM_EXTENTS,
    VARIANT,
    State,
    problem_field,
)
from pyflash.tuner.problems import FLAGS, NUMBERS, problem_to_json
from pyflash.ui.markup import element, joined
from pyflash.variant.library import names

STYLE = Markup("""
.pyflash form fieldset { border: 1px solid var(--line); margin: 0 0 1rem; padding: .5rem .8rem;
  display: flex; flex-wrap: wrap; align-items: flex-end; gap: .4rem 1rem; min-width: 0; }
.pyflash form label { display: flex; flex-direction: column; font-size: .8rem;
  color: var(--soft); }
.pyflash form label.box { flex-direction: row; align-items: center; gap: .3rem; }
.pyflash form input, .pyflash form select, .pyflash form button { font: inherit; color: var(--ink);
  background: var(--back); border: 1px solid var(--soft); padding: .15rem .3rem; max-width: 100%;
  box-sizing: border-box; }
.pyflash form input[type=number] { width: 7rem; }
.pyflash form input[name=config] { width: 100%; }
.pyflash form label.whole { flex: 1 1 100%; min-width: 0; }
.pyflash :is(input, select, button, iframe):focus-visible { outline: 3px solid #3b82f6; }
.pyflash iframe { width: 100%; height: 36rem; border: 1px solid var(--line);
  box-sizing: border-box; }
.pyflash pre.tiles { line-height: 1; }
.pyflash pre { overflow-x: auto; }
.pyflash p a, .pyflash li a { overflow-wrap: anywhere; }
""")


def controls(state: State) -> Markup:
    """Two forms: the short form, to copy or to replace, and a control for each field."""
    return joined(_by_text(state), _by_fields(state))


def _by_text(state: State) -> Markup:
    hidden = [
        element("input", type="hidden", name=name, value=value)
        for name, value in state.query.items()
        if name != "config"
    ]
    text = element(
        "input", name="config", value=state.query["config"], spellcheck="false", autocomplete="off"
    )
    return element(
        "form",
        element(
            "fieldset",
            element("legend", "Short form"),
            element("label", "to copy, or to show another", text, class_="whole"),
            element("button", "Show this short form"),
            *hidden,
        ),
        action="/",
    )


def _by_fields(state: State) -> Markup:
    config, family = state.config, state.config.family
    described = describe(family.config_type).fields
    fields = [_field(field, getattr(config, field.name), state) for field in described.values()]
    return element(
        "form",
        element(
            "fieldset",
            element("legend", "Family and architecture"),
            _select(FAMILY, [known.name for known in FAMILIES], family.name),
            _select("arch", [arch.name for arch in ARCHS], state.arch.name),
        ),
        element("fieldset", element("legend", "Config"), *fields),
        element("fieldset", element("legend", "Problem"), *_problem(state)),
        element("fieldset", element("legend", "Variant"), _variant(state)),
        element("input", type="hidden", name=FIELDS_OF, value=family.name),
        element("button", "Show these fields"),
        action="/",
    )


def _field(field: Field, value: object, state: State) -> Markup:
    if field.kind is bool:
        return _box(field.name, field.name, bool(value))
    if field.is_enum:
        return _select(field.name, list(field.kind.__members__), getattr(value, "name", ""))
    choices = state.config.family.choices()[field.name]
    return _number(field.name, field.name, value, choices, min=field.least)


def _problem(state: State) -> list[Markup]:
    values = problem_to_json(state.problem)
    numbers = [
        _number(problem_field(name), name, values.get(name), min=0, step=1)
        for name in PROBLEM_EXTENTS
    ]
    numbers += [
        _number(problem_field(name), name, values.get(name), step=1 if kind is int else "any")
        for name, kind in NUMBERS.items()
    ]
    return numbers + [_box(problem_field(name), name, bool(values.get(name))) for name in FLAGS]


def _variant(state: State) -> Markup:
    """A text comes by a URL, and stays."""
    words = ["", *names()]
    if state.variant not in words:
        words.append(state.variant)
    return _select(VARIANT, words, state.variant)


def _select(name: str, words: list[str], chosen: str) -> Markup:
    options = (
        element("option", word or "none", value=word, selected="" if word == chosen else None)
        for word in words
    )
    return element("label", name, element("select", *options, name=name))


def _box(name: str, label: str, ticked: bool) -> Markup:
    checked = "" if ticked else None
    box = element("input", type="checkbox", name=name, value="on", checked=checked)
    return element("label", box, label, class_="box")


def _number(
    name: str, label: str, value: object, choices: tuple[int, ...] = (), **limits: object
) -> Markup:
    listed = f"choices-{name}" if choices else None
    shown = "" if value is None else value
    box = element("input", type="number", name=name, value=shown, list=listed, **limits)
    options = (element("option", value=choice) for choice in choices)
    return element("label", label, box, *[element("datalist", *options, id=listed)] * bool(listed))
