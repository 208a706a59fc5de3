"""Models of transformers with small random weights: attn_implementation="pyflash" beside eager.

    PYTHONPATH=.:tests python -m support.transformers_sweep [--all] [NAME ...]

prints what became of a class of each config of the folders or classes of these names, by default of
all; --all: of every class.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from support.tiny_models import SEQLEN, model_classes, tiny_config, tiny_inputs
from torch import Tensor
from transformers import PreTrainedModel

from pyflash.integrations import transformers as integration
from pyflash.op.reference import tolerance

_LENGTHS = (SEQLEN, SEQLEN - 9)  # of the rows of a padded batch


class NothingToCompareError(ValueError):
    """No output is of floats, or, in a padded batch, has the shape of the mask."""


@dataclass
class Outcome:
    """kind is "equal", "refused" or "different"; "not made" and "not run" without pyflash, because
    what is missing is a package or a better config here; "failed" where pyflash raises what is no
    refusal."""

    kind: str
    words: str = ""
    errors: dict[str, float] = field(
        default_factory=dict
    )  # by padding, in parts of what is allowed
    n_calls: int = 0


def sweep(model_class: type[PreTrainedModel], dtype: torch.dtype = torch.float16) -> Outcome:
    """Makes the model three times: fp32 and 16-bit eager, and pyflash."""
    if not model_class._supports_flash_attn:
        return _refused_when_made(model_class)
    if model_class.forward is torch.nn.Module.forward:
        return Outcome("not run", "it has no forward")
    for keep_types in (True, False):
        try:
            config = tiny_config(model_class.config_class, keep_types)
            with _without_initial_weights():
                reference = _make(model_class, config, "eager", torch.float32)
            break
        except Exception as error:
            outcome = Outcome("not made", _words(error))
    else:
        return outcome
    try:
        with _without_initial_weights():
            of_pyflash = _make(model_class, config, "pyflash", dtype)
    except Exception as error:
        return _refusal_or_failure(error)
    weights = _spread(reference, dtype)
    with _without_initial_weights():
        eager = _make(model_class, config, "eager", dtype)
    for model in (reference, eager, of_pyflash):
        model.load_state_dict(weights)
    try:
        inputs = _first_that_runs(reference)
    except Exception as error:  # a model without weights has no dtype, say
        return Outcome("not run", _words(error))
    if isinstance(inputs, Outcome):
        return inputs
    outcome = Outcome("equal")
    for padding in _paddings(inputs):
        try:
            ref, pt16 = (_run(model, inputs, padding) for model in (reference, eager))
        except NothingToCompareError as error:
            if padding != "none":  # such as outputs that are pooled over the sequence
                continue
            return Outcome("not run", _words(error))
        except Exception as error:
            return Outcome("not run", _words(error))
        with _counting() as calls:
            try:
                out = _run(of_pyflash, inputs, padding)
            except Exception as error:
                return _refusal_or_failure(error)
        outcome.n_calls += len(calls)
        outcome.errors[padding] = _error(ref, pt16, out)
    if max(outcome.errors.values()) > 1:
        outcome.kind = "different"
    return outcome


def _make(
    model_class: type[PreTrainedModel], config: Any, implementation: str, dtype: torch.dtype
) -> Any:
    torch.manual_seed(0)
    config = copy.deepcopy(config)
    return model_class._from_config(config, attn_implementation=implementation, dtype=dtype).eval()


@contextlib.contextmanager
def _without_initial_weights() -> Iterator[None]:
    """For models that load others: to draw these takes longer than to run them."""
    drawing = {name: getattr(Tensor, name) for name in ("normal_", "uniform_")}

    def zeros_or(draw: Any) -> Any:
        def fill(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            is_weight = isinstance(tensor, torch.nn.Parameter)
            return tensor.zero_() if is_weight else draw(tensor, *args, **kwargs)

        return fill

    for name, draw in drawing.items():
        setattr(Tensor, name, zeros_or(draw))
    try:
        yield
    finally:
        for name, draw in drawing.items():
            setattr(Tensor, name, draw)


def _refused_when_made(model_class: type[PreTrainedModel]) -> Outcome:
    """A class that is to be refused before it has weights."""
    try:
        config = tiny_config(model_class.config_class)
    except Exception:
        config = model_class.config_class()
    try:
        with torch.device("meta"):
            _make(model_class, config, "pyflash", torch.float16)
    except Exception as error:
        return _refusal_or_failure(error)
    return Outcome("failed", "it was made")


def _first_that_runs(model: PreTrainedModel) -> dict[str, Any] | Outcome:
    outcome = Outcome("not run")
    for inputs in tiny_inputs(model):
        try:
            _run(model, inputs, "none")
        except Exception as error:
            outcome.words = outcome.words or _words(error)
        else:
            return inputs
    return outcome


def _spread(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, Tensor]:
    """Weights with which attention matters in what comes out, exact in `dtype`."""
    generator = torch.Generator().manual_seed(0)
    parameters = dict(model.named_parameters())
    weights = {}
    for name, weight in model.state_dict().items():
        if weight.is_floating_point():
            if weight.dim() >= 2 and name in parameters:
                fan_in = weight.shape[1:].numel() if "embed" not in name else 1
                weight = torch.randn(weight.shape, generator=generator) * 1.3 / fan_in**0.5
            weight = weight.to(dtype).float()
        weights[name] = weight
    return weights


def _paddings(inputs: dict[str, Any]) -> list[str]:
    """A mask goes with ids of the batch and length that it is made for."""
    ids = inputs.get("input_ids")
    fits = ids is not None and len(ids) == len(_LENGTHS) and next(iter(inputs)) == "input_ids"
    return ["none", "left", "right"] if fits else ["none"]


def _mask(padding: str) -> Tensor | None:
    if padding == "none":
        return None
    columns = torch.arange(SEQLEN)
    columns = columns.flip(0) if padding == "left" else columns
    return (columns < torch.tensor(_LENGTHS)[:, None]).long()


@torch.no_grad()
def _run(model: PreTrainedModel, inputs: dict[str, Any], padding: str) -> list[Tensor]:
    inputs = {
        name: x.to(model.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in inputs.items()
    }
    mask = _mask(padding)
    if mask is not None:
        inputs["attention_mask"] = mask
    torch.manual_seed(0)
    outputs = model(**inputs)
    tensors = list(_tensors(outputs))
    if mask is not None:
        tensors = [x[mask.bool()] for x in tensors if x.shape[:2] == mask.shape]
    if not tensors:
        raise NothingToCompareError("no outputs to compare")
    return tensors


def _tensors(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        if outputs.is_floating_point():
            yield outputs
    elif isinstance(outputs, dict):
        for name, value in outputs.items():
            if "past_key_values" not in name and "cache" not in name:
                yield from _tensors(value)
    elif isinstance(outputs, list | tuple):
        for value in outputs:
            yield from _tensors(value)


def _error(ref: list[Tensor], pt16: list[Tensor], out: list[Tensor]) -> float:
    """The largest, as a part of what is allowed; NaNs must be where those of eager are."""
    largest = 0.0
    for r, p, o in zip(ref, pt16, out, strict=True):
        keep = r.isfinite() & p.isfinite()
        if not keep.any():
            continue
        r, p, o = r[keep].float(), p[keep], o[keep].float()
        error = (o - r).abs().max().item() if o.isfinite().all() else float("inf")
        bound = tolerance(r, p)
        largest = max(largest, error / bound if error else 0.0)
    return largest


def _refusal_or_failure(error: Exception) -> Outcome:
    words = _words(error)
    in_words = isinstance(error, ValueError | RuntimeError) and (
        "pyflash" in words or "Flash attention" in words
    )
    if isinstance(error, ImportError):
        return Outcome("not made", words)
    return Outcome("refused" if in_words else "failed", words)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]


class _counting:
    """Counts the layers that pyflash computes."""

    def __enter__(self) -> list[None]:
        self.calls: list[None] = []
        self.names = ("attention", "attention_varlen", "padded_attention")
        self.old = {name: getattr(integration, name) for name in self.names}
        for name, function in self.old.items():
            setattr(integration, name, self._counted(function))
        return self.calls

    def _counted(self, function: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(None)
            return function(*args, **kwargs)

        return counted

    def __exit__(self, *_: object) -> None:
        for name, function in self.old.items():
            setattr(integration, name, function)


_FIRST = ("ForConditionalGeneration", "ForCausalLM", "Model")


def one_of_each_config() -> list[tuple[str, type[PreTrainedModel]]]:
    """One of the classes with the same config: a model with a head, where there is one."""
    by_config: dict[Any, list[type[PreTrainedModel]]] = collections.defaultdict(list)
    for folder, item in model_classes():
        if not item.__name__.endswith("PreTrainedModel"):
            by_config[folder, item.config_class].append(item)

    def order(item: type[PreTrainedModel]) -> int:
        ends = [i for i, end in enumerate(_FIRST) if item.__name__.endswith(end)]
        return ends[0] if ends else len(_FIRST)

    return [(folder, min(items, key=order)) for (folder, _), items in by_config.items()]


def main(names: list[str]) -> int:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    integration.register()
    classes = list(model_classes()) if "--all" in names else one_of_each_config()
    names = [name for name in names if name != "--all"]
    counts: dict[str, int] = collections.Counter()
    for folder, item in classes:
        if names and folder not in names and item.__name__ not in names:
            continue
        start = time.perf_counter()
        outcome = sweep(item)
        counts[outcome.kind] += 1
        errors = " ".join(f"{name} {error:.2g}" for name, error in outcome.errors.items())
        seconds = time.perf_counter() - start
        print(
            f"{outcome.kind:10s} {item.__name__:50s} {outcome.n_calls:3d} calls {seconds:5.2f} s "
            f"{errors}{outcome.words}",
            flush=True,
        )
    print(dict(counts))
    return counts["different"] + counts["failed"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
