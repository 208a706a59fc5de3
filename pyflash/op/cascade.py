"""Attention over prefixes that sequences share, and over what each has of its own.

The queries of all sequences that share a prefix are rows of one sequence of the prefix's level, so
its keys are read once for all of them. The levels are merged by lse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from torch import Tensor

from pyflash.op.errors import check_types, require
from pyflash.op.merge import merge_states
from pyflash.op.options import AttentionOptions, Scope, given, of_scope, refuse_unknown
from pyflash.op.paged import attention_paged

if TYPE_CHECKING:
    from typing_extensions import Unpack

    # block_table, (groups, max_pages), and seqlens_k, (groups,), int32: the keys of this level;
    # cu_seqlens_q, (groups + 1,), int32: where the queries of each group begin; and a bound of
    # their number.
    Level = tuple[Tensor, Tensor, Tensor, int]


@overload
def attention_cascade(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    levels: Sequence[Level],
    *,
    out: Tensor | None = None,
    return_lse: Literal[False] = False,
    **options: Unpack[AttentionOptions],
) -> Tensor: ...
@overload
def attention_cascade(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    levels: Sequence[Level],
    *,
    out: Tensor | None = None,
    return_lse: Literal[True],
    **options: Unpack[AttentionOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def attention_cascade(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    levels: Sequence[Level],
    *,
    out: Tensor | None = None,
    return_lse: bool,
    **options: Unpack[AttentionOptions],
) -> Tensor | tuple[Tensor, Tensor]: ...
def attention_cascade(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    levels: Sequence[Level],
    *,
    out: Tensor | None = None,
    return_lse: bool = False,
    **options: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """`attention_paged` of sequences whose first keys are shared: the prefix is read once for all
    queries of a group.

    q is (total_q, heads, d_head), packed; the caches are those of `attention_paged`. levels go from
    the widest groups to the sequences themselves. A level is a tuple of int32 tensors and a number:

    - block_table, (groups, max_pages): the pages of each group's keys in this level.
    - seqlens_k, (groups,): how many keys these are; 0 for a group without a prefix.
    - cu_seqlens_q, (groups + 1,): where the queries of each group begin, and the last end.
    - max_seqlen_q: an upper bound of the queries of a group.

    In all levels but the last each query attends all keys of its group. The groups of the last are
    the sequences: their keys behind all prefixes, those of this step included; causal is about
    these alone.

    options: softmax_scale, softcap, sinks, causal, config and num_splits, as in `attention_paged`;
    a sink counts once. config and num_splits are those of each level.

    Returns out, as q, written into `out` if that is given; with `return_lse` also lse, (heads,
    total_q), float32. Levels are merged in the dtype of q by `merge_states`, so out has one more
    rounding than that of `attention_paged`.

    Raises what `attention_paged` raises, and ValueError for no levels and for an option that
    depends on positions other than causal: those of a level are not those of the sequence.
    """
    refuse_unknown("attention_cascade", options)
    check_types({"q": q, "k_cache": k_cache, "v_cache": v_cache}, {})
    require(len(levels) > 0, "levels is empty: expected at least that of each sequence's own keys")
    positional = given(of_scope(options, Scope.WINDOW, Scope.POSITION, Scope.CALL))
    others = [name for name in positional if name != "causal"]
    require(
        not others,
        f"attention_cascade got {', '.join(others)}: expected no option but causal that depends on "
        "positions, which levels do not know",
    )
    states = []
    for i, level in enumerate(levels):
        require(
            len(level) == 4,
            f"levels[{i}] has {len(level)} items: expected block_table, seqlens_k, cu_seqlens_q "
            "and max_seqlen_q",
        )
        block_table, seqlens_k, cu_seqlens_q, max_seqlen_q = level
        is_last = i == len(levels) - 1
        of_level = {
            name: x for name, x in options.items() if is_last or name not in ("causal", "sinks")
        }
        states.append(
            attention_paged(
                q,
                k_cache,
                v_cache,
                block_table,
                seqlens_k,
                cu_seqlens_q=cu_seqlens_q,
                max_seqlen_q=max_seqlen_q,
                return_lse=True,
                **of_level,
            )
        )
    merged, lse = merge_states(states, out=out)
    return (merged, lse) if return_lse else merged
