"""The engine of the rules that make a config legal; each family brings its own rules.

A rule is a generator of sentences, one for each way in which the config breaks it; a sentence gives
the numbers and says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyflash.config.arch import Arch


class Violation(NamedTuple):
    """A broken rule: its name, and a sentence with the numbers and what to do."""

    rule: str
    sentence: str


Rule = Callable[[Any, Arch], Iterator[str]]


class Rules:
    """The rules of one family, registered by decorators:

    - `rule`: what the hardware or the structure of the kernel refuses;
    - `support`: what the kernels are not written or tested for. It is asked only where no rule is
      broken: a value that a rule refuses needs no second sentence;
    - `warning`: what is legal but likely slow.
    """

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.supports: list[Rule] = []
        self.cautions: list[Rule] = []

    def rule(self, function: Rule) -> Rule:
        self.rules.append(function)
        return function

    def support(self, function: Rule) -> Rule:
        self.supports.append(function)
        return function

    def support_values(self, supported: Mapping[str, Sequence[Any]]) -> None:
        """Adds the rule that each of these fields has one of these values."""

        def supported_values(config: Any, arch: Arch) -> Iterator[str]:
            for name, values in supported.items():
                value = getattr(config, name)
                if value not in values:
                    yield f"{name} = {value} is not supported: use {choices(values)}"

        self.support(supported_values)

    def warning(self, function: Rule) -> Rule:
        self.cautions.append(function)
        return function

    def violations(self, config: Any, arch: Arch) -> list[Violation]:
        """Every broken rule."""
        return _broken(self.rules, config, arch) or _broken(self.supports, config, arch)

    def warnings(self, config: Any, arch: Arch) -> list[Violation]:
        return _broken(self.cautions, config, arch)

    def undecided(self, partial: Any, arch: Arch, rules: Sequence[Rule]) -> Sequence[Rule] | None:
        """Which of `rules` are not decided by the fields that `partial` has, a config whose other
        fields raise AttributeError when read; None where one is broken already."""
        left = []
        for rule in rules:
            try:
                if any(True for _ in rule(partial, arch)):
                    return None
            except AttributeError:
                left.append(rule)
        return left

    def are_kept(self, config: Any, arch: Arch) -> bool:
        """Whether there are no violations; stops at the first."""
        rules = (*self.supports, *self.rules)
        return not any(True for rule in rules for _ in rule(config, arch))


def choices(values: Sequence[Any]) -> str:
    """ "1", "1 or 2", "1, 2 or 3"."""
    *head, last = map(str, values)
    return f"{', '.join(head)} or {last}" if head else last


def _broken(rules: Iterable[Rule], config: Any, arch: Arch) -> list[Violation]:
    return [Violation(rule.__name__, text) for rule in rules for text in rule(config, arch)]
