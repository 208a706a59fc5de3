"""Which configs of a space are candidates for which problems, and why others are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyflash.config import FORWARD, Arch, KernelConfig, Space, as_config
from pyflash.op.selection import Problem, features_needed
from pyflash.op.variants.features import features_asked
from pyflash.tuner.builder import Kernel
from pyflash.variant import Variant
from pyflash.variant.needs import needs_of

AnySpace = Space | KernelConfig | str | Iterable["AnySpace"]


@dataclass
class Survey:
    """The legal configs of a space, and the refused ones by rule."""

    n_configs: int = 0
    legal: list[KernelConfig] = field(default_factory=list)  # canonical, each once
    n_repeated: int = 0  # another name of a kernel that is in `legal`
    # By rule: how many break it (a config may break several), and one with the sentence.
    refused: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[str, str]] = field(default_factory=dict)
    n_refused: int = 0


def survey(space: AnySpace, arch: Arch) -> Survey:
    """Sorts the configs of a space, of several, or of any iterable of configs or short forms.

    Raises ValueError for one of another op than forward, whose problems are tuned for."""
    result = Survey()
    seen: set[KernelConfig] = set()
    for config in _configs(space):
        if config.family.op is not FORWARD:
            raise ValueError(f"{config} is of op {config.family.op}: {FORWARD} alone is tuned")
        result.n_configs += 1
        violations = config.violations(arch)
        if violations:
            result.n_refused += 1
            for rule, sentence in violations:
                result.refused[rule] += 1
                result.examples.setdefault(rule, (str(config), sentence))
            continue
        canonical = config.canonical()
        if canonical in seen:
            result.n_repeated += 1
        else:
            seen.add(canonical)
            result.legal.append(canonical)
    return result


def kernels_for(
    problem: Problem, configs: Iterable[KernelConfig], variant: Variant | None = None
) -> list[Kernel]:
    """Those of the problem's dtype and of the smallest d_head that is large enough; with a variant,
    those that take one. Raises ValueError for an option that no kernel has beside a variant."""
    if variant:
        needs = needs_of(variant)
        configs = [c for c in configs if c.family.takes_variant(c, needs)]
    fitting = [c for c in configs if c.dtype == problem.dtype and c.d_head >= problem.d_head]
    d_head = min((config.d_head for config in fitting), default=0)
    smallest = [config for config in fitting if config.d_head == d_head]
    if variant:
        return [
            Kernel(c, features_asked(problem.options, problem.d_head, c), variant=str(variant))
            for c in smallest
        ]
    needed = [features_needed(problem, config) for config in smallest[:1]]  # the same of all
    return [Kernel(config, *needed) for config in smallest]


def _configs(space: AnySpace) -> Iterable[KernelConfig]:
    if isinstance(space, KernelConfig | str):
        yield as_config(space)
    else:
        for part in space:
            yield from _configs(part)
