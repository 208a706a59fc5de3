"""What the page shows: a config, an architecture, a problem, a variant. Each state has one URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from pyflash.config import FAMILIES, FORWARD, Arch, Family, KernelConfig, parse, rank
from pyflash.config.family import find_family
from pyflash.config.fields import Field, describe
from pyflash.explore import DEFAULT_ARCH, DEFAULT_PROBLEM
from pyflash.op.selection import Problem
from pyflash.tuner.problems import EXTENTS, FLAGS, NUMBERS, parse_problem, problem_text
from pyflash.ui.variants import variant_of

# The form says whose fields it has: a box that is not ticked is not sent.
FIELDS_OF = "fields_of"
FAMILY = "family"
VARIANT = "variant"
_PROBLEM = "problem."
# The config says the others.
PROBLEM_EXTENTS = tuple(name for name in EXTENTS if name not in ("seqlen", "d_head"))


@dataclass(frozen=True)
class State:
    config: KernelConfig
    arch: Arch
    problem: Problem  # of the config's dtype and d_head
    variant: str = ""  # a name or a text; "": plain attention

    @classmethod
    def of(cls, query: Mapping[str, str]) -> State:
        """That of a URL's query, or of the form's. Raises ValueError, or TypeError, for what is no
        config, architecture, problem or variant."""
        config = parse(query["config"]) if "config" in query else _config_of_form(query)
        arch = Arch.of(query.get("arch") or DEFAULT_ARCH)
        words = query.get("problem", DEFAULT_PROBLEM)
        if FIELDS_OF in query:
            words = _problem_of_form(query)
        dtype = config.dtype.name.lower()
        problem = parse_problem(f"{dtype},{words},d_head={config.d_head}", "cpu")
        if variant := query.get(VARIANT, "").strip():
            variant_of(variant)
        return cls(config, arch, problem, variant)

    @classmethod
    def of_problem(cls, config: KernelConfig, arch: str, problem: str) -> State:
        """`problem` as `problem_text` writes it, of the config's dtype and d_head."""
        words = [word for word in problem.split(",")[1:] if not word.startswith("d_head=")]
        return cls.of({"config": str(config), "arch": arch, "problem": ",".join(words)})

    @property
    def query(self) -> dict[str, str]:
        """The one that `of` reads this state from."""
        _, *words = problem_text(self.problem).split(",")
        kept = [word for word in words if not word.startswith("d_head=")]
        query = {"config": str(self.config), "arch": str(self.arch), "problem": ",".join(kept)}
        return query | ({VARIANT: self.variant} if self.variant else {})

    @property
    def url(self) -> str:
        return f"/?{urlencode(self.query)}"


def default_config(family: Family) -> KernelConfig:
    """The one that selection prefers."""
    return family.ranked[0]


def first_config(arch: Arch | str) -> KernelConfig:
    """The forward one that selection prefers on an architecture."""
    arch = Arch.of(arch)
    ranked = (c for f in FAMILIES if f.op is FORWARD for c in f.ranked if c.is_legal(arch))
    return min(ranked, key=rank)


def problem_field(name: str) -> str:
    """The name of an extent or option in the form: a config may have a field of the same name."""
    return _PROBLEM + name


def _config_of_form(query: Mapping[str, str]) -> KernelConfig:
    family = find_family(query.get(FAMILY, FAMILIES[0].name))
    config = default_config(family)
    fields = describe(family.config_type).fields
    if query.get(FIELDS_OF) != family.name:  # the family was just chosen: keep what all have
        fields = {name: fields[name] for name in ("dtype", "d_head") if name in query}
    return config.replace(**{name: _value(field, query) for name, field in fields.items()})


def _value(field: Field, query: Mapping[str, str]) -> object:
    text = query.get(field.name, "")
    if field.kind is bool:
        return bool(text)
    if field.is_enum:
        return field.value_of(text)
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{field.name} is {text!r}: expected a number") from None


def _problem_of_form(query: Mapping[str, str]) -> str:
    numbers = (*PROBLEM_EXTENTS, *NUMBERS)
    given = ((name, query.get(problem_field(name), "").strip()) for name in numbers)
    words = [f"{name}={text}" for name, text in given if text]
    return ",".join([*words, *(name for name in FLAGS if query.get(problem_field(name)))])
