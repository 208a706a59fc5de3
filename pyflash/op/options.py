"""The options of attention: a table with a row for each option and a column for each question that
other code asks.

Everything between `attention` and the op carries them as one value: a mapping of those that were
given; an option that is missing has its default. Needs no torch. The table in C++, with checks and
what kernels get, is cute_kernels/host/options.h.
"""

import inspect
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict, TypeVar

from pyflash.config.words import shown

if TYPE_CHECKING:
    from torch import Tensor

    from pyflash.config import KernelConfig


class Scope(Enum):
    """What an option depends on, which decides how attention over a part of the keys applies it."""

    SCORE = "score"  # each score alone, or none: parts take it as it is
    DENOMINATOR = "denominator"  # a logit per head for each row's sum: once, after parts are merged
    WINDOW = "window"  # a diagonal that hides keys: each part has its own
    POSITION = "position"  # the positions of query and key: parts cannot take it
    CALL = "call"  # the places of sequence and head in a call, too: ranks cannot take it


class Option(NamedTuple):
    """A row. The defaults of the columns are the most restrictive values."""

    default: Any
    meaning: str
    scope: Scope = Scope.POSITION
    # Device types on which q, k and v have gradients with it, or OWN_KERNELS; elsewhere a call that
    # needs them is refused in forward.
    gradients_on: tuple[str, ...] = ()
    in_backward: bool = True  # an argument of the op's backward, too
    # The op of the gradient of a tensor, given (grad_out, out, lse, tensor); "": it has none, and a
    # tensor that requires one is refused.
    gradient: str = ""
    chooses: bool = False  # how a call runs, and not what it computes
    per_head: bool = True  # a tensor has a number for each head

    @property
    def is_positional(self) -> bool:
        """Whether its effect on a score depends on the positions of query and key."""
        return self.scope in (Scope.WINDOW, Scope.POSITION)


# A place of `gradients_on`: a GPU, where the kernels of op backward take the call.
OWN_KERNELS = "kernels"
_EVERYWHERE = ("cpu", "cuda")
_NOT_BORROWED = ("cpu", OWN_KERNELS)


class AttentionOptions(TypedDict, total=False):
    """The keyword arguments of `attention` and `attention_varlen`; the types are those that a
    caller may pass. A tensor has a number for each head, unless `per_head` is False."""

    softmax_scale: Annotated[
        float | None,
        Option(None, "the factor of q k^T; None: 1 / sqrt(d_head).", Scope.SCORE, _EVERYWHERE),
    ]
    causal: Annotated[
        bool,
        Option(
            False,
            "a query attends no key behind the one that it is aligned with: window_right = 0.",
            Scope.WINDOW,
            _EVERYWHERE,
        ),
    ]
    window_left: Annotated[
        int,
        Option(
            -1,
            "query i attends key j only if j >= i + seqlen_k - seqlen_q - window_left; -1: no "
            "limit. Windows are bottom-right aligned: the last query is aligned with the last key.",
            Scope.WINDOW,
            _EVERYWHERE,
        ),
    ]
    window_right: Annotated[
        int,
        Option(
            -1,
            "query i attends key j only if j <= i + seqlen_k - seqlen_q + window_right; -1: no "
            "limit.",
            Scope.WINDOW,
            _EVERYWHERE,
        ),
    ]
    attention_chunk: Annotated[
        int,
        Option(
            0,
            "chunked local attention: keys are divided into chunks of this many, and query i "
            "attends only keys of the chunk of the key that it is aligned with, "
            "i + seqlen_k - seqlen_q; 0: off.",
            Scope.POSITION,
            _EVERYWHERE,
        ),
    ]
    softcap: Annotated[
        float,
        Option(
            0.0,
            "scores s become softcap * tanh(s / softcap) before the softmax; 0: off.",
            Scope.SCORE,
            gradients_on=_NOT_BORROWED,
        ),
    ]
    config: Annotated[
        "KernelConfig | str",
        Option(
            "",
            'the kernel to run, or its short form; "": the best known config for this problem '
            "(`pyflash.select` returns it with the reason). On a GPU an explicit config is used or "
            "raises; there is no fallback. Its d_head may exceed that of q. On the CPU, where no "
            "kernel runs, it has to be legal on some GPU and to fit q as there; it sets block "
            "sizes and softmax, and need not be built.",
            Scope.SCORE,
            _EVERYWHERE,
            in_backward=False,
            chooses=True,
        ),
    ]
    num_splits: Annotated[
        int,
        Option(
            0,
            "split-KV: the number of CTAs, up to 128, that share the keys of a block of queries; "
            "0: chosen; -1: shared by the device, which sees how long sequences are, so that every "
            "CTA gets equally many blocks of keys, of kernels of the SM90 family whose tiles hold "
            "all queries of a sequence. A call is deterministic; different numbers differ by "
            "rounding. Ignored on the CPU.",
            Scope.SCORE,
            _EVERYWHERE,
            in_backward=False,
            chooses=True,
        ),
    ]
    sinks: Annotated[
        "Tensor | None",
        Option(
            None,
            "(heads,), contiguous, float32 or the dtype of q: one logit per head that joins the "
            "softmax denominator only: out = exp(s) v / (sum(exp(s)) + exp(sink)). It is neither "
            "scaled nor capped nor masked.",
            Scope.DENOMINATOR,
            _EVERYWHERE,
            in_backward=False,  # it is in lse
            gradient="bwd_sinks",
        ),
    ]
    alibi_slopes: Annotated[
        "Tensor | None",
        Option(
            None,
            "(heads,) or (batch, heads), contiguous, float32: ALiBi, as in FlashAttention: the "
            "score of query i and key j loses slope * |i + seqlen_k - seqlen_q - j| after "
            "softmax_scale. Not with softcap. It has no gradient.",
            Scope.POSITION,
            gradients_on=_NOT_BORROWED,
        ),
    ]
    deterministic: Annotated[
        bool,
        Option(
            False,
            "gradients are the same bits in every call. out and lse are so anyway. On a GPU "
            "pyflash's own backward kernels run, which then sum in one order; PyTorch's do it only "
            "under torch.use_deterministic_algorithms(True), which asks for the same.",
            Scope.SCORE,
            gradients_on=_NOT_BORROWED,
            chooses=True,
        ),
    ]
    dropout_p: Annotated[
        float,
        Option(
            0.0,
            "the probability with which each element of softmax(s) is dropped, from 0 on and below "
            "1; what is kept counts 1 / (1 - dropout_p) times. lse is that of all elements. "
            "Functions do not know whether a model is in training. Not with variant, "
            "batch_invariant, seqlens_q and seqlens_k.",
            Scope.CALL,
            gradients_on=_NOT_BORROWED,
        ),
    ]
    dropout_state: Annotated[
        "Tensor | None",
        Option(
            None,
            "(2,), int64 or uint64, on the device of q: seed and offset, from which follows what "
            "dropout_p drops (docs/guides/train.md); None: drawn from the device's generator, "
            "which on a GPU moves on as under PyTorch's flash attention.",
            Scope.CALL,
            gradients_on=_NOT_BORROWED,
            per_head=False,
        ),
    ]


OPTIONS: dict[str, Option] = {
    name: hint.__metadata__[0] for name, hint in AttentionOptions.__annotations__.items()
}
DEFAULTS: dict[str, Any] = {name: option.default for name, option in OPTIONS.items()}


def kinds_of_options() -> dict[str, str]:
    """What each option may be, as `pyflash.op.errors` names it."""
    names = {
        bool: "bool",
        int: "int",
        float: "float",
        float | None: "float or None",
        "KernelConfig | str": "config",
        "Tensor | None": "tensor or None",
    }
    kinds = {name: hint.__origin__ for name, hint in AttentionOptions.__annotations__.items()}
    return {name: names[getattr(k, "__forward_arg__", k)] for name, k in kinds.items()}


def scalar_options() -> dict[str, tuple[Any, Option]]:
    """The options that are numbers or flags, as a command line can take them: type and option."""
    kinds = {name: hint.__origin__ for name, hint in AttentionOptions.__annotations__.items()}
    scalars = (bool, int, float, float | None)
    return {name: (kind, OPTIONS[name]) for name, kind in kinds.items() if kind in scalars}


# Those that are tensors.
TENSORS: tuple[str, ...] = tuple(
    name for name, kind in kinds_of_options().items() if kind == "tensor or None"
)
PER_HEAD: tuple[str, ...] = tuple(name for name in TENSORS if OPTIONS[name].per_head)
BACKWARD_TENSORS: tuple[str, ...] = tuple(name for name in TENSORS if OPTIONS[name].in_backward)


def is_given(name: str, value: Any) -> bool:
    """Whether this is not the option's default."""
    return value is not None if name in TENSORS else value != DEFAULTS[name]


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not at their defaults."""
    return {name: value for name, value in options.items() if is_given(name, value)}


def of_scope(options: Mapping[str, Any], *scopes: Scope) -> dict[str, Any]:
    """The given options of these scopes."""
    return {name: x for name, x in given(options).items() if OPTIONS[name].scope in scopes}


def tensors_of(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """One for each of `TENSORS`, or None."""
    return tuple([options.get(name) for name in TENSORS])


def backward_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the op's backward takes, tensors aside."""
    return {
        name: value
        for name, value in options.items()
        if OPTIONS[name].in_backward and name not in TENSORS
    }


def softmax_scale_of(options: Mapping[str, Any], d_head: int) -> float:
    """The factor of the scores."""
    scale = options.get("softmax_scale")
    return 1 / math.sqrt(d_head) if scale is None else scale


def windows_asked(options: Mapping[str, Any]) -> tuple[int, int]:
    """(left, right) as they were given, -1: no limit."""
    right = 0 if options.get("causal") else options.get("window_right", -1)
    return options.get("window_left", -1), right


def windows_of(options: Mapping[str, Any], seqlen_q: int, seqlen_k: int) -> tuple[int, int]:
    """(left, right), -1 on a side where nothing is masked between these lengths: `mask_of` of
    cute_kernels/host/problem.h, without the call of an op that asking C++ would cost."""
    left, right = windows_asked(options)
    return left if left < seqlen_k - 1 else -1, right if right < seqlen_q - 1 else -1


def refuse_unknown(function: str, options: Mapping[str, Any]) -> None:
    """Raises TypeError for a name that is not an option's."""
    for name in options:
        if name not in OPTIONS:
            import difflib  # takes a millisecond, so only in the error path

            meant = difflib.get_close_matches(str(name), OPTIONS, n=1, cutoff=0.5)
            hint = f"; did you mean {meant[0]}?" if meant else ""
            raise TypeError(
                f"pyflash: {function} got an unexpected keyword argument {shown(name)}: expected "
                f"{', '.join(OPTIONS)}{hint}"
            )


_Function = TypeVar("_Function", bound=Callable[..., Any])


def shows_options(function: _Function) -> _Function:
    """For a function of **options: spells them out in its signature, and in its docstring in place
    of the line `{options}`, but for those that are parameters of its own."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    positional = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    others = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
    names = [name for name in OPTIONS if name not in signature.parameters]
    function.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*positional, *_parameters(names), *others]
    )
    if function.__doc__:  # None under python -OO
        function.__doc__ = function.__doc__.replace("    {options}", _meanings(names))
    return function


def _parameters(names: Iterable[str]) -> Iterator[inspect.Parameter]:
    for name in names:
        hint = AttentionOptions.__annotations__[name]
        kind = hint.__origin__
        yield inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=DEFAULTS[name],
            annotation=getattr(kind, "__forward_arg__", None) or kind,
        )


def _meanings(names: Iterable[str]) -> str:
    lines = (f"- {name}: {OPTIONS[name].meaning}" for name in names)
    wrap = {"width": 100, "initial_indent": "    ", "subsequent_indent": "      "}
    return "\n".join(textwrap.fill(line, **wrap) for line in lines)
