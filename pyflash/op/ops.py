"""Attention, the Python face of `torch.ops.pyflash.fwd` and `torch.ops.pyflash.fwd_varlen`.

The CUDA and CPU implementations are in cute_kernels/bindings/; autograd, autocast and vmap are in
pyflash/op/autograd/, the fake implementations in pyflash/op/fake.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from pyflash.op import dropout
from pyflash.op.arguments import arguments_of
from pyflash.op.autograd import call_op
from pyflash.op.errors import check_type, check_types
from pyflash.op.invariant import invariant_arguments
from pyflash.op.on_demand import ensure_built
from pyflash.op.options import AttentionOptions, shows_options
from pyflash.op.used_lengths import Used, check_lengths, ranges_of
from pyflash.op.variants.call import refuse_values, with_variant
from pyflash.variant import Bound, Variant

if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    seqlens_q: Tensor | None = None,
    seqlens_k: Tensor | None = None,
    return_lse: Literal[False] = False,
    compile: bool = False,
    variant: Variant | Bound | str | None = None,
    tensors: Mapping[str, Any] | None = None,
    backward: str = "",
    batch_invariant: bool = False,
    **options: Unpack[AttentionOptions],
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    seqlens_q: Tensor | None = None,
    seqlens_k: Tensor | None = None,
    return_lse: Literal[True],
    compile: bool = False,
    variant: Variant | Bound | str | None = None,
    tensors: Mapping[str, Any] | None = None,
    backward: str = "",
    batch_invariant: bool = False,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    seqlens_q: Tensor | None = None,
    seqlens_k: Tensor | None = None,
    return_lse: bool,
    compile: bool = False,
    variant: Variant | Bound | str | None = None,
    tensors: Mapping[str, Any] | None = None,
    backward: str = "",
    batch_invariant: bool = False,
    **options: Unpack[AttentionOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
@shows_options
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    seqlens_q: Tensor | None = None,
    seqlens_k: Tensor | None = None,
    return_lse: bool = False,
    compile: bool = False,
    variant: Variant | Bound | str | None = None,
    tensors: Mapping[str, Any] | None = None,
    backward: str = "",
    batch_invariant: bool = False,
    **options: Unpack[AttentionOptions],
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(softmax_scale * q k^T) v of each batch and head, over the keys that are not masked.

    q is (batch, seqlen_q, heads, d_head), k and v are (batch, seqlen_k, heads_kv, d_head), all
    float16 or all bfloat16, all on one CUDA device or on the CPU. d_head is a multiple of 8 up to
    256. heads is a multiple of heads_kv: head h of q attends head h // (heads // heads_kv) of k and
    v. The last dimension must be contiguous; the other strides and the addresses must be multiples
    of 16 bytes.

    {options}

    seqlens_q, seqlens_k: the rows of each sequence that are used, from its first: (batch,), int32,
    on the device of q; None: all. Windows are aligned with the last ones of them. Rows of q behind
    them have out = 0 and lse = -inf; nothing behind them is read as a key. Kernels read them, so
    that nothing waits for a GPU, and a CUDA graph serves any lengths; their values are checked on
    the CPU, and on a GPU taken as the nearest that are there. q, k and v whose batches lie one
    behind the other are not copied. Not with variant.

    compile: on a GPU, `config` is compiled if it is not built; minutes or less the first time, and
    kept in the user's cache, so that later processes only load it. PYFLASH_JIT=1 in the environment
    asks for it in every call. Needs nvcc and CUTLASS's headers.

    variant: which attention is computed (docs/guides/variants.md): a score function and a mask, as
    a `pyflash.variant.Variant`, one that is bound, its text, or the name of a named one. tensors:
    the values of its parameters by name, tensors and numbers. Its score s is scaled and, with
    softcap, capped; a pair that the windows hide stays hidden. It has gradients on the CPU, and
    with backward="reference" anywhere: by the formula in PyTorch, which takes memory for all
    scores; those of its tensors, too. Not with alibi_slopes.

    batch_invariant: the bits of a row depend on its query, the keys and values it attends, and the
    options, and not on other rows, lengths, pages or chunks, nor on which of the functions of
    attention is called. By one config for each dtype and d_head (`pyflash build --set invariant`
    builds them for a GPU) and one split. On a GPU not with softcap.

    Returns out, (batch, seqlen_q, heads, d_head), contiguous, in the dtype of q; with `return_lse`
    also lse, (batch, heads, seqlen_q), float32, contiguous: ln(sum(exp(s))) of the scores s, scaled
    and capped, over the keys attended, and of the sink. A row with nothing to attend has out = 0
    and lse = -inf, or the sink.

    Gradients: of out and, where pyflash's own kernels run and on the CPU, of lse, with respect to
    q, k, v and sinks; first derivatives only. `pyflash.select` says whose kernels compute those of
    q, k and v on a GPU: pyflash's own, or PyTorch's cuDNN or flash backward, which support neither
    softcap nor alibi_slopes and are deterministic only under
    `torch.use_deterministic_algorithms(True)`. Where an option has no gradients, a call that needs
    them raises in forward.
    Forward-mode derivatives and vmap raise. `torch.autocast` casts q, k and v to its dtype.

    Raises ValueError that names the argument, what was expected and what came; TypeError for an
    unknown keyword argument and for one of another type; torch.OutOfMemoryError where memory is not
    enough for a result; RuntimeError for what else this machine, or what is built on it, cannot do.
    (The op, `torch.ops.pyflash.fwd`, raises RuntimeError for all.)
    """
    arguments = arguments_of("attention", options)
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        check_types({"q": q, "k": k, "v": v}, {})
    if seqlens_q is not None or seqlens_k is not None:
        if variant is not None:
            raise ValueError(
                "pyflash: variant came with seqlens_q or seqlens_k: expected one of them, because "
                "a variant's positions are those in packed sequences (pyflash.attention_varlen)"
            )
        refuse_values(tensors, backward)
        dropout.refuse(arguments, "seqlens_q or seqlens_k")
        arguments = invariant_arguments(batch_invariant, arguments, q, k)
        return _of_used_rows((q, k, v), seqlens_q, seqlens_k, arguments, return_lse, compile)
    if variant is not None:
        dropout.refuse(arguments, "variant")
        invariant_arguments(batch_invariant, arguments, q, k, variant=variant)
        return with_variant(
            (q, k, v), (), variant, tensors, backward, arguments, return_lse, compile
        )
    refuse_values(tensors, backward)
    arguments = invariant_arguments(batch_invariant, arguments, q, k)
    ensure_built(arguments, q, k, (), compile)
    if arguments:
        arguments = dropout.with_state(arguments, q)
    out, lse = call_op(torch.ops.pyflash.fwd.default, q, k, v, (), arguments)
    return (out, lse) if return_lse else out


def _of_used_rows(
    inputs: tuple[Tensor, Tensor, Tensor],
    seqlens_q: Tensor | None,
    seqlens_k: Tensor | None,
    arguments: dict[str, Any],
    return_lse: bool,
    compile: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    q, k, v = inputs
    check_type("seqlens_q", seqlens_q, "tensor or None")
    check_type("seqlens_k", seqlens_k, "tensor or None")
    check_lengths(q, k, v, seqlens_q=seqlens_q, seqlens_k=seqlens_k)
    out, lse = attend_used_rows(
        inputs, Used(None, seqlens_q), Used(None, seqlens_k), arguments, compile
    )
    if not return_lse:
        return out
    if seqlens_q is not None:  # a row may hold a logit of no key
        row = torch.arange(q.shape[1], device=q.device)
        lse = lse.masked_fill((row >= seqlens_q[:, None])[:, None], -torch.inf)
    return out, lse.contiguous()


def attend_used_rows(
    inputs: tuple[Tensor, Tensor, Tensor],
    used_q: Used,
    used_k: Used,
    arguments: dict[str, Any],
    compile: bool = False,
) -> tuple[Tensor, Tensor]:
    """out and lse, (batch, heads, seqlen_q), of padded sequences of which some rows are used.
    arguments: of the op."""
    q, k, v = inputs
    ranges = ranges_of(q, k, used_q, used_k)
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    arguments = ranges.options(arguments)
    ensure_built(arguments, packed[0], packed[1], ranges.packing, compile)
    out, lse = call_op(torch.ops.pyflash.fwd_varlen.default, *packed, ranges.packing, arguments)
    return out.unflatten(0, q.shape[:2]), lse.unflatten(1, q.shape[:2]).transpose(0, 1)


@overload
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    return_lse: Literal[False] = False,
    compile: bool = False,
    variant: Variant | Bound | str | None = None,
    tensors: Mapping[str, Any] | None = None,
    backward: str = "",
    batch_invariant: bool = False,
    **options: Unpack[AttentionOptions],
) -> Tensor: ...
@overload
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    return_lse: Literal[True],
    compile: bool = False,
    variant: Variant | Bound | str | None = None,
    tensors: Mapping[str, Any] | None = None,
    backward: str = "",
    batch_invariant: bool = False,
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    return_lse: bool,
    compile: bool = False,
    variant: Variant | Bound | str | None = None,
    tensors: Mapping[str, Any] | None = None,
    backward: str = "",
    batch_invariant: bool = False,
    **options: Unpack[AttentionOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
@shows_options
def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    return_lse: bool = False,
    compile: bool = False,
    variant: Variant | Bound | str | None = None,
    tensors: Mapping[str, Any] | None = None,
    backward: str = "",
    batch_invariant: bool = False,
    **options: Unpack[AttentionOptions],
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention` of variable-length sequences, packed one after the other without padding.

    q is (total_q, heads, d_head), k and v are (total_k, heads_kv, d_head). cu_seqlens_q and
    cu_seqlens_k are (batch + 1), int32, contiguous, on the device of q: sequence b of q has rows
    [cu_seqlens_q[b], cu_seqlens_q[b + 1]), k and v likewise. They ascend from 0 to total_q and
    total_k; a length may be 0. max_seqlen_q and max_seqlen_k are upper bounds of the lengths; they
    size the grid, so tight ones are best. Windows are aligned with the end of each sequence.

    The values of cu_seqlens are checked on the CPU. On a GPU they are not, because that would
    synchronize: with wrong values rows are wrong, and rows past max_seqlen are not written, neither
    in out and lse nor in gradients, but no access leaves the tensors.

    {options}

    compile, variant, tensors, backward: as for `attention`. A variant's positions are those in the
    sequence, its b is the sequence.

    Returns out, (total_q, heads, d_head), contiguous, in the dtype of q; with `return_lse` also
    lse, (heads, total_q), float32, contiguous.

    Raises what `attention` raises.
    """
    arguments = arguments_of("attention_varlen", options)
    own = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    check_types(own, {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k})
    packing = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    if variant is not None:
        dropout.refuse(arguments, "variant")
        invariant_arguments(batch_invariant, arguments, q, k, variant=variant)
        return with_variant(
            (q, k, v), packing, variant, tensors, backward, arguments, return_lse, compile
        )
    refuse_values(tensors, backward)
    arguments = invariant_arguments(batch_invariant, arguments, q, k, max_seqlen_q)
    ensure_built(arguments, q, k, packing, compile)
    if arguments:
        arguments = dropout.with_state(arguments, q, cu_seqlens_q)
    out, lse = call_op(torch.ops.pyflash.fwd_varlen.default, q, k, v, packing, arguments)
    return (out, lse) if return_lse else out
