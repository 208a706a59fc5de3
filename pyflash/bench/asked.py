"""Translates the options of `pyflash bench`: problems to measure, or records to show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pyflash.bench.contenders import BACKENDS, check_backends, title_of
from pyflash.bench.measurements import mask
from pyflash.bench.records import OURS, Record
from pyflash.config import BACKWARD, FORWARD, KernelConfig, named_set, parse
from pyflash.ui.variants import AskedVariant

Keeps = Callable[[Record], bool]

# By parameter: --read refuses the former, and the latter pick no records.
MEASURING = ("samples", "host", "out", "value")
SHOWING = ("read", "csv", "plot", "roofline", "html", "form", "as_json", "over")


def passes_of(text: str) -> list[str]:
    return _words(text, (FORWARD.name, BACKWARD.name, "both"), "--pass")


def dtypes_of(text: str) -> list[str]:
    return _words(text.lower(), ("fp16", "bf16"), "--dtype")


def masks_of(text: str) -> list[str]:
    return _words(text, ("full", "causal"), "--mask")


def d_heads_of(text: str) -> list[int]:
    return _numbers(text, "--d-head")


def seqlens_of(text: str) -> list[int]:
    return _numbers(text, "--seqlen")


def backends_of(text: str) -> list[str]:
    return [] if text == "none" else [word.strip() for word in text.split(",")]


def configs_of(texts: Sequence[str], set_name: str | None) -> list[KernelConfig]:
    """Each once. Raises ValueError for both, and for what is no config or set."""
    if texts and set_name:
        raise ValueError("configs and --set exclude each other")
    found = named_set(set_name) if set_name else [parse(text) for text in texts]
    return list(dict.fromkeys(found))


def check_variant(given: Mapping[str, str], passes: str) -> None:
    """Raises ValueError for an option that says what a variant says, and for backward passes."""
    if "mask" in given:
        raise ValueError("--variant has a mask: expected no --mask beside it")
    if passes_of(passes) != [FORWARD.name]:
        raise ValueError(f"--variant is timed forward alone: expected no --pass {passes} beside it")


def kept(records: Iterable[Record], options: Mapping[str, Any]) -> list[Record]:
    """Returns the records that fit these options, by parameter.

    Raises ValueError for a value that is not one of its option.
    """
    keeps = [make(options) for name, make in _KEEPS.items() if name in options]
    return [record for record in records if all(keep(record) for keep in keeps)]


def _of_problem(name: str, values: Sequence[Any]) -> Keeps:
    return lambda record: record["problem"][name] in values


def _of_lengths(options: Mapping[str, Any]) -> Keeps:
    """Keeps these lengths of q and k or, with --decode, of k."""
    lengths, decode = seqlens_of(options["seqlen"]), options.get("decode", False)

    def keep(record: Record) -> bool:
        q, k = record["problem"]["seqlen_q"], record["problem"]["seqlen_k"]
        return k in lengths and (decode or q == k)

    return keep


def _of_tokens(options: Mapping[str, Any]) -> Keeps:
    def keep(record: Record) -> bool:
        problem = record["problem"]
        return problem["batch"] == max(1, options["tokens"] // problem["seqlen_k"])

    return keep


def _of_device(options: Mapping[str, Any]) -> Keeps:
    """Keeps the devices of this type or, where the option has an index, the one device."""

    def keep(record: Record) -> bool:
        device = record["problem"]["device"]
        return options["device"] in (device, device.partition(":")[0])

    return keep


def _of_masks(options: Mapping[str, Any]) -> Keeps:
    masks = masks_of(options["mask"])
    return lambda record: mask(record["problem"]) in masks


def _of_passes(options: Mapping[str, Any]) -> Keeps:
    passes = passes_of(options["passes"])
    return lambda record: record["what"] in passes


def _of_configs(options: Mapping[str, Any]) -> Keeps:
    """Keeps pyflash's records with one of these configs, and all records of others."""
    configs = configs_of(options.get("configs") or [], options.get("set_name"))
    wanted = {config.canonical() for config in configs}

    def keep(record: Record) -> bool:
        config = record["short_form"]
        return not _is_ours(record) or bool(config and parse(config).canonical() in wanted)

    return keep


def _of_backends(options: Mapping[str, Any]) -> Keeps:
    """Keeps the records of these backends, and all of pyflash's."""
    names = backends_of(options["backend"])
    check_backends(names)
    titles = [title_of(name) for name in BACKENDS if name in names]
    return lambda record: _is_ours(record) or record["contender"] in titles


def _is_ours(record: Record) -> bool:
    return record["contender"] == OURS or bool(record["short_form"])


def _of_variant(options: Mapping[str, Any]) -> Keeps:
    found = AskedVariant.of(options["variant"], None)
    name = found and found.name
    return lambda record: record["problem"].get("variant") == name


_KEEPS: dict[str, Callable[[Mapping[str, Any]], Keeps]] = {
    "configs": _of_configs,
    "set_name": _of_configs,
    "backend": _of_backends,
    "passes": _of_passes,
    "decode": lambda options: _of_problem("seqlen_q", [1]),
    "seqlen": _of_lengths,
    "tokens": _of_tokens,
    "d_head": lambda options: _of_problem("d_head", d_heads_of(options["d_head"])),
    "heads": lambda options: _of_problem("heads_q", [options["heads"]]),
    "heads_kv": lambda options: _of_problem("heads_kv", [options["heads_kv"]]),
    "mask": _of_masks,
    "variant": _of_variant,
    "dtype": lambda options: _of_problem(
        "dtype", [dtype.upper() for dtype in dtypes_of(options["dtype"])]
    ),
    "device": _of_device,
}


def _words(text: str, known: Sequence[str], option: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if unknown := [word for word in words if word not in known]:
        raise ValueError(f"{option} {unknown[0]}: expected some of {', '.join(known)}")
    return list(dict.fromkeys(words))


def _numbers(text: str, option: str) -> list[int]:
    """Such as 512,1k: k is 1024. Raises ValueError for what is no number of at least 1."""
    numbers = []
    for word in text.split(","):
        digits = word.strip().lower().removesuffix("k")
        if not digits.isdecimal() or int(digits) < 1:
            raise ValueError(f"{option} {word}: expected numbers such as 512,1k")
        numbers.append(int(digits) * (1024 if word.strip().lower().endswith("k") else 1))
    return list(dict.fromkeys(numbers))
