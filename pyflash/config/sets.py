"""The named sets of configs, and the order of preference: both ask the families."""

from __future__ import annotations

import os

from pyflash.config.base import KernelConfig
from pyflash.config.family import FAMILIES, as_config
from pyflash.config.words import shown, type_name

SET_NAMES = tuple(dict.fromkeys(name for family in FAMILIES for name in family.sets))
UNRANKED = 1_000_000


def named_set(name: str) -> list[KernelConfig]:
    """The configs of a set, without repetitions: those of each family that defines it, in the order
    of the families. `all` is what is built by default, `prog` the ladder in its order, `prog_all`
    the ladder at every block size, `tune` what a tuning run tries, "B_r,B_c" the part of `tune` at
    that block size, `head_dims` the head dimensions 32, 96, 192 and 256, which `all` lacks,
    `invariant` the kernels of batch_invariant, `backward` the kernels of gradients of both,
    `dropout` those of both passes with dropout.

    Raises ValueError, listing the names, for any other; TypeError for what is no text.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"the name of a set is {type_name(name)}: expected one of {list(SET_NAMES)}"
        )
    if name not in SET_NAMES:
        known = ", ".join(map(repr, SET_NAMES))  # some have commas
        raise ValueError(f"unknown set of kernels {shown(name)}: expected one of {known}")
    return [config for family in FAMILIES if name in family.sets for config in family.sets[name]()]


def from_environment() -> list[KernelConfig]:
    """The set that PYFLASH_KERNELS names, or else KERNELS, or else `all`; or the configs of the
    short forms in it, with semicolons between."""
    first, *others = words_of_environment()
    return named_set(*others) if first == "--set" else list(map(as_config, [first, *others]))


def words_of_environment() -> list[str]:
    """What `pyflash build` takes for the configs of `from_environment`: --set and a name, or short
    forms. Raises ValueError for a set that is unknown and for text that is no config."""
    for variable in ("PYFLASH_KERNELS", "KERNELS"):
        value = os.environ.get(variable, "")
        if value.lstrip().startswith("("):
            return [str(as_config(text)) for text in value.split(";") if text.strip()]
        if value:
            if value not in SET_NAMES:
                raise ValueError(
                    f"{variable} is {value!r}: expected one of {', '.join(SET_NAMES)}, or short "
                    "forms of configs with semicolons between"
                )
            return ["--set", value]
    return ["--set", "all"]


def rank(config: KernelConfig | str) -> int:
    """The order of preference where several configs would do, smaller first."""
    config = as_config(config).canonical()
    family = config.family
    return family.first_rank + family.ranked.index(config) if config in family.ranked else UNRANKED
