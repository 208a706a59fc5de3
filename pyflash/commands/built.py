"""What `pyflash build` builds, lists and emits."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pyflash.ui.app import check_writable
from pyflash.ui.variants import AskedVariant

if TYPE_CHECKING:
    from pyflash.config import Arch, KernelConfig, KernelFeatures
    from pyflash.variant import Variant

# What is shown in a line, and the same as JSON can hold it.
Shown = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Asked:
    """What is built, and for which architectures; none: this machine has no GPU."""

    configs: list[KernelConfig]
    named: list[str]  # the configs of the command line, as they are there
    set_name: str | None
    archs: list[Arch]
    features: list[KernelFeatures]  # besides those that the families build
    only: list[KernelFeatures] | None  # in place of those
    variant: Variant | None = None  # of each kernel

    @classmethod
    def of(
        cls,
        named: list[str],
        set_name: str | None,
        archs: list[Arch] | None,
        features: list[KernelFeatures] | None,
        only: list[KernelFeatures] | None,
        with_variant: AskedVariant | None = None,
    ) -> Asked:
        """With a variant, a set's configs that have room for it, and those of gradients."""
        from pyflash.codegen.build import default_archs, that_run_on
        from pyflash.config import ARCHS, from_environment, named_set, parse
        from pyflash.variant.needs import needs_of

        archs = default_archs() if archs is None else archs
        if named:
            configs = [parse(text) for text in named]
        else:
            found = named_set(set_name) if set_name else from_environment()
            configs = that_run_on(found, archs or ARCHS)
            if with_variant:
                needs = needs_of(with_variant.variant)
                configs = [c for c in configs if c.family.builds_variant(c, needs)]
        variant = with_variant.variant if with_variant else None
        return cls(configs, named, set_name, archs, features or [], only, variant)

    @property
    def shown_archs(self) -> Sequence[Arch]:
        """Those of a list: every known one where none is named."""
        from pyflash.config import ARCHS

        return self.archs or ARCHS

    @property
    def default_name(self) -> str:
        """The set's name; for configs one by what they are, so that a build leaves others alone. A
        variant's key follows."""
        with_variant = f"_variant_{self.variant.key}" if self.variant else ""
        return self._name_of_configs + with_variant

    @property
    def _name_of_configs(self) -> str:
        from pyflash.codegen import emit

        if not self.named:
            return self.set_name.replace(",", "x") if self.set_name else "default"
        first, *others = emit.canonical_configs(self.configs)
        if not others:
            return emit.file_stem(first)
        digest = hashlib.sha256("; ".join(map(str, [first, *others])).encode()).hexdigest()
        return f"{len(others) + 1}_configs_{digest[:8]}"

    def command(self, name: str) -> list[str]:
        """What builds the same library wherever and whenever it is run, but for --out."""
        from pyflash.config.sets import words_of_environment

        archs = ",".join(str(arch.sm) for arch in self.archs)
        command = ["pyflash", "build", "--name", name, "--arch", archs]
        for option, combinations in (("--features", self.features), ("--only", self.only)):
            if combinations:
                command += [option, ",".join(map(str, combinations))]
        if self.variant:
            command += ["--variant", str(self.variant)]
        named = ["--set", self.set_name] if self.set_name else words_of_environment()
        return [*command, *(self.named or named)]

    @property
    def features_with_variant(self) -> list[KernelFeatures | str]:
        """Plain and `features`, or `only` in place of those."""
        from pyflash.config.op import PLAIN

        return list(self.only or [PLAIN, *self.features])


def build_ops_library(out: Path | None) -> Shown:
    from pyflash.codegen.build import LIB_DIR, build_ops

    folder = out or LIB_DIR
    check_writable(folder / "libpyflash_ops.so")
    library = build_ops(folder)
    return str(library), {"library": str(library)}


def build_library(asked: Asked, out: Path | None, name: str, keep_going: bool) -> Shown:
    from pyflash.codegen.build import abi, build_kernels, build_with_variants
    from pyflash.codegen.kernel_libraries import library_file, record_file, user_dir

    if out is not None:
        check_writable(library_file(out, name))
    if asked.variant:
        library = build_with_variants(
            [asked.variant],
            asked.configs,
            asked.archs,
            asked.features_with_variant,
            library_file(out or user_dir(abi(), name), name),
            asked.command(name),
        )
        return str(library), {"library": str(library), "record": str(record_file(library))}
    library = build_kernels(
        asked.configs,
        asked.archs,
        out,
        name,
        keep_going,
        features=asked.only,
        more_features=asked.features,
        rebuild=asked.command(name),
    )
    return str(library), {"library": str(library), "record": str(record_file(library))}


def listed(asked: Asked) -> Iterator[Shown]:
    """Each config; below it what it takes, and what speaks against it, and against the variant in
    it."""
    from pyflash.variant.needs import needs_of

    for config in asked.configs:
        canonical = config.canonical()
        notes = [] if config == canonical else [f"built as {canonical}"]
        legal = [arch for arch in asked.shown_archs if config.is_legal(arch)]
        registers = config.resources(legal[0]).registers if legal else None
        ctas = {arch.name: config.num_ctas_per_sm(arch) for arch in legal}
        if legal:
            of_each = ", ".join(_on_archs(ctas))
            notes.append(f"{registers} registers, CTAs per SM: {of_each}")
        found: dict[str, Any] = {
            "config": str(config),
            "canonical": str(canonical),
            "registers": registers,
            "num_ctas_per_sm": ctas,
        }
        for kind, ask in (("violations", config.violations), ("warnings", config.warnings)):
            found[kind] = [
                {"arch": arch.name, **v._asdict()} for arch in asked.shown_archs for v in ask(arch)
            ]
        if legal and not asked.archs:
            others = [arch.name for arch in asked.shown_archs if arch not in legal]
            notes += [f"not on {', '.join(others)}: --arch says why"] if others else []
        else:
            notes += _told(found["violations"])
        if asked.variant:
            refusal = config.family.variant_refusal(config, needs_of(asked.variant))
            found["variant"] = refusal
            notes += [refusal] if refusal else []
        yield "\n  ".join([str(config), *notes, *_told(found["warnings"])]), found
    typer.echo(f"{len(asked.configs)} configs", err=True)


def _on_archs(values: Mapping[str, object]) -> Iterator[str]:
    """Each value with its architectures, "2 on sm_80, sm_90", in the order of the values."""
    for value in dict.fromkeys(values.values()):
        yield f"{value} on {', '.join(arch for arch in values if values[arch] == value)}"


def _told(violations: Iterable[Mapping[str, str]]) -> list[str]:
    """Their sentences; one that differs between architectures by numbers alone stands for all."""
    archs_of: dict[str, list[str]] = {}
    first: dict[str, str] = {}
    for violation in violations:
        sentence = violation["sentence"]
        kind = re.sub(r"\d+", "", sentence.replace(violation["arch"], ""))
        first.setdefault(kind, sentence)
        archs_of.setdefault(kind, []).append(violation["arch"])
    return [f"{', '.join(archs_of[kind])}: {sentence}" for kind, sentence in first.items()]


def emitted(asked: Asked, folder: Path) -> Shown:
    """The translation units and the emitted headers as files; the config map only for
    named architectures."""
    from pyflash.codegen import config_header, config_map, emit, ops_header, variant_rows
    from pyflash.codegen.build import legal_archs, rows_of
    from pyflash.codegen.cache_dir import write_if_changed

    texts = dict(_unit(asked, config) for config in emit.canonical_configs(asked.configs))
    texts[str(config_header.PATH)] = config_header.emit_config_header()
    texts |= {str(path): text for path, text in ops_header.emit_headers().items()}
    if asked.archs:
        archs_of = legal_archs(asked.configs, asked.archs)
        row_of = {} if asked.variant else rows_of(archs_of, asked.only, asked.features)
        texts["config_map.cpp"] = config_map.emit_config_map(row_of)
        if asked.variant:
            rows = {
                (config, asked.variant): config_map.Row(archs, _with_variant(asked, config))
                for config, archs in archs_of.items()
            }
            texts["variant_rows.cpp"] = variant_rows.emit_variant_rows(rows)
    written = [name for name, text in texts.items() if write_if_changed(folder / name, text)]
    unchanged = [name for name in texts if name not in written]
    line = f"{folder}: {len(written)} files written, {len(unchanged)} unchanged"
    return line, {"folder": str(folder), "written": written, "unchanged": unchanged}


def _unit(asked: Asked, config: KernelConfig) -> tuple[str, str]:
    """The name and the text of a config's translation unit."""
    from pyflash.codegen import emit
    from pyflash.codegen.build import compiled_features

    if asked.variant:
        text = emit.emit_with_variant(config, asked.variant, _with_variant(asked, config))
        return f"{emit.variant_stem(config, asked.variant)}.cu", text
    features = compiled_features(config, asked.only, asked.features)
    return f"{emit.file_stem(config)}.cu", emit.emit_config(config, features)


def _with_variant(asked: Asked, config: KernelConfig) -> Sequence[KernelFeatures]:
    return config.family.op.features.in_dispatch_order(asked.features_with_variant)


def to_compile(asked: Asked) -> Iterator[Shown]:
    from pyflash.codegen.build import kernel_compilations, legal_archs, variant_compilations
    from pyflash.codegen.cache import object_problem

    archs_of = legal_archs(asked.configs, asked.archs)
    if asked.variant:
        of_pairs = variant_compilations([asked.variant], archs_of, asked.features_with_variant)
        compilations = {config: found for (config, _), found in of_pairs.items()}
    else:
        compilations = kernel_compilations(archs_of, asked.only, asked.features)
    n_reused = 0
    for config, compilation in compilations.items():
        reused = object_problem(compilation.object) is None
        n_reused += reused
        archs = [arch.name for arch in archs_of[config]]
        found = {"config": str(config), "archs": archs, "reused": reused}
        yield f"{'reuse' if reused else 'compile':7}  {','.join(archs)}  {config}", found
    typer.echo(f"{len(compilations) - n_reused} to compile, {n_reused} to reuse", err=True)
