// Which blocks of queries attend tiles of keys under a variant's mask: block_lists.h, of a backward.
#pragma once

#include "cute_kernels/variant/block_lists.h"

namespace pyflash::variant {

// The lists of a problem without data: tiles of B_c keys, and blocks of n_queries, of each head.
template <class Variant>
constexpr BlockLists query_lists(ListedProblem const& problem) {
  bool const per_batch = Variant::kMaskReadsBatch || problem.q.is_packed();
  return {.data = nullptr,
          .batches = per_batch ? problem.batch : 1,
          .heads = Variant::kMaskReadsHead ? problem.heads : 1,
          .tiles = problem.k.most_blocks(problem.B_c),
          .blocks = problem.q.most_blocks(problem.n_queries)};
}

// Writes list number `index`, by all lanes. load: reads an int at an address.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class Variant, class Lanes, class Loader>
PYFLASH_HOST_DEVICE void write_query_list(typename Variant::Params const& captured,
                                          ListedProblem const& problem, BlockLists const& lists,
                                          int64_t index, Lanes const& lanes, Loader const& load) {
  TileOfLists const at = lists.tile_of(index);
  Rows const q_rows = problem.q.rows_of(at.batch, load);
  Rows const k_rows = problem.k.rows_of(at.batch, load);
  int const first = at.tile * problem.B_c;
  int const end = smaller(first + problem.B_c, k_rows.length);
  Interval blocks{0, 0};
  if (first < end) {
    blocks = problem.mask.queries_from(first, q_rows.length, k_rows.length)
                 .of_some(end - first)
                 .from_0()
                 .blocks_touched(problem.n_queries);
    blocks.end = smaller(blocks.end, lists.blocks);  // whatever cu_seqlens hold
  }
  Lengths const lengths{q_rows.length, k_rows.length, 0, 0};
  Bounds const keys{first, end - 1};
  typename Variant::TileColumns columns{};
  if (first < end) {
    columns = Variant::tile_columns(captured, lengths, at.batch, at.head, keys);
  }
  write_shown(lists.list(at.batch, at.head, at.tile), blocks, lanes, [&](int block) {
    int64_t const query = int64_t(block) * problem.n_queries;
    int64_t const last = minimum(query + problem.n_queries, int64_t(q_rows.length)) - 1;
    Bounds const queries{query, last};
    return Variant::tile(captured, lengths,
                         Variant::tile_rows(captured, lengths, at.batch, at.head, queries), columns,
                         at.batch, at.head, queries, keys);
  });
}

}  // namespace pyflash::variant
