// What launchers of kernels with a variant share: the tables of prepared fields, the bits of masks and the lists of blocks, each
// made by a kernel of their own. Host code, for the emitted rows alone: their kernels are compiled by themselves (makers.cuh).
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "cute_kernels/row.h"
#include "cute_kernels/variant/kernel_params.h"
#include "cute_kernels/variant/makers.h"
#include "cute_kernels/variant/mask_bits.h"
#include "cute_kernels/variant/tile_order.h"
#include "cute_kernels/variant_row.h"

namespace pyflash::variant {

// How what is made comes to be.
struct Making {
  Makers const& makers;
  cudaStream_t stream;
  bool is_made;  // nothing is launched: the memory holds it

  // arguments: of the very types that the kernel takes.
  template <class... Arguments>
  cudaError_t launch(void const* kernel, int64_t n_ctas, int n_threads,
                     Arguments const&... arguments) const {
    if (n_ctas == 0 || is_made) {
      return cudaSuccess;
    }
    if (n_ctas > INT32_MAX) {
      return cudaErrorInvalidConfiguration;
    }
    void const* addresses[] = {&arguments...};
    return cudaLaunchKernel(kernel, dim3(unsigned(n_ctas)), dim3(n_threads),
                            const_cast<void**>(addresses), 0, stream);
  }
};

// NOTE: a table may be of tensors that the score function alone reads.
template <class Variant>
inline constexpr bool kMakesOfTensors = Variant::kMaskReadsTensors || Variant::kPrepared > 0;

// Launches what writes the tables at `memory`.
template <class Variant>
cudaError_t make_prepared(Making const& making, typename Variant::Params const& captured,
                          ListedProblem const& problem, int* memory) {
  constexpr int kThreads = 256;
  int64_t const size = prepared_size<Variant>(problem);
  return making.launch(making.makers.prepare, ceil_div(size, int64_t(kThreads)), kThreads, captured,
                       problem, memory, size);
}

// The ints that are made for a kernel of op forward: tables, bits, spans, lists, and the order of tiles where the family takes one.
template <class Variant>
struct Memory {
  int64_t prepared = 0;
  int64_t bits = 0;
  int64_t spans = 0;  // NOTE: before what is not of 16-byte alignment
  int64_t lists = 0;
  int64_t order = 0;

  Memory(ListedProblem const& problem, bool takes_order)
      : prepared(prepared_size<Variant>(problem)), bits(bits_size<Variant>(problem)) {
    if constexpr (Variant::kHasMask) {
      BlockLists const of_tiles = problem.lists<Variant>();
      spans =
          block_spans<Variant>(problem).size(of_tiles) * int64_t(sizeof(BlockSpan) / sizeof(int));
      lists = ceil_div(of_tiles.size(), int64_t(2)) * 2;  // so that the order is aligned
      if (kSortsTiles<Variant> && takes_order) {
        order = TileSort{of_tiles, problem.batch}.size();
      }
    }
  }

  int64_t sum() const { return prepared + bits + spans + lists + order; }
};

// Launches what writes n_lists lists of so many blocks at most: a warp each, or a CTA where they are long.
template <class... Arguments>
cudaError_t write_lists(Making const& making, int64_t n_lists, int n_blocks,
                        Arguments const&... arguments) {
  constexpr int kLong = 128;
  constexpr int kWarps = 4;
  bool const are_long = n_blocks > kLong;
  int const warps = are_long ? kMostWarpsOfList : 1;
  int const lists_of_cta = are_long ? 1 : kWarps;
  return making.launch(making.makers.list, ceil_div(n_lists, int64_t(lists_of_cta)),
                       warps * lists_of_cta * 32, arguments..., warps);
}

// Launches what judges the blocks of lists; a CTA judges several where they are many, so that bounds of one do not wait for those
// of another.
template <class... Arguments>
cudaError_t judge_blocks(Making const& making, BlockLists const& lists,
                         Arguments const&... arguments) {
  constexpr int kCtas = 2048;
  int64_t const n_blocks = lists.n_lists() * lists.blocks;
  int const count = int(clamp(n_blocks / kCtas, int64_t(1), int64_t(kMostJudged)));
  return making.launch(making.makers.judge, ceil_div(n_blocks, int64_t(count)), kJudgingThreads,
                       arguments..., count);
}

// Launches what writes the lists at `memory` behind the spans, and where there are bits of the mask, these before them at
// `bits`; there is nothing to do without a mask.
template <class Variant>
cudaError_t make_lists(Making const& making, Made<Variant>& made,
                       typename Variant::Params const& captured, ListedProblem problem,
                       Memory<Variant> const& sizes, int* memory, uint32_t* bits) {
  if constexpr (Variant::kHasMask) {
    BlockLists& lists = made.lists;
    lists = problem.lists<Variant>();
    made.spans = block_spans<Variant>(problem);
    made.spans.data = reinterpret_cast<BlockSpan*>(memory);
    lists.data = memory + sizes.spans;
    if (kTakesBits<Variant> && lists.size() > INT32_MAX) {
      return cudaErrorInvalidConfiguration;  // kernels count entries by 32 bits
    }
    if (bits != nullptr) {
      made.bits = bits;
      problem.is_judged = true;
      cudaError_t const error =
          judge_blocks(making, lists, captured, made.prepared, problem, lists, bits);
      if (error != cudaSuccess) {
        return error;
      }
    }
    return write_lists(making, lists.n_lists(), lists.blocks, captured, problem, lists, made.spans);
  }
  return cudaSuccess;
}

// Launches what writes the order of tiles at `memory`, where there are some, and no more than are sorted.
template <class Sort>
cudaError_t make_order(Making const& making, int const*& order, Sort const& sort, int* memory) {
  int64_t const n_ctas = int64_t(ceil_div(sort.group_size(), kSortThreads)) * sort.n_groups();
  if (n_ctas == 0 || n_ctas > INT32_MAX) {
    return cudaSuccess;
  }
  order = memory;
  return making.launch(making.makers.sort, n_ctas, kSortThreads, sort, memory);
}

// What is made of a problem, as `problem` tells.
inline MadeBefore made_before(ListedProblem const& problem, bool takes_order, bool walks_lists,
                              int64_t n_ints) {
  // NOTE: a member that is added does not compile before it is among the numbers.
  auto const& [q, k, mask, batch, heads, n_queries, B_c, group, warpgroups, is_judged, k_lengths] =
      problem;
  auto const& [q_starts, q_longest, q_total] = q;
  auto const& [k_starts, k_longest, k_total] = k;
  auto const& [window_left, window_right, chunk] = mask;
  return {
      .n_ints = n_ints,
      .is_of_host = q_starts == nullptr && k_starts == nullptr && k_lengths == nullptr,
      .numbers = {q_longest, q_total, k_longest, k_total, window_left, window_right, chunk, batch,
                  heads, n_queries, B_c, group, warpgroups, is_judged, takes_order, walks_lists}};
}

// Runs a config's kernel with a variant. Overloads of the family launch it, and say whether it takes an order of tiles and how much
// shared memory.
template <auto kConfig, class Variant, Makers const& kMakers>
int run(VariantRow const& row, size_t i, Forward::Params const& params, Arguments const& arguments,
        int* memory, bool is_made, void* stream) {
  auto const on = static_cast<cudaStream_t>(stream);
  Making const making{kMakers, on, is_made};
  auto const captured = Variant::params_of(arguments);
  ListedProblem const problem = listed_problem(kConfig, params);
  Memory<Variant> const sizes(problem, takes_order(kConfig, params));
  Made<Variant> made{{}, prepared_tables<Variant>(problem, memory)};
  cudaError_t error = make_prepared<Variant>(making, captured, problem, memory);
  memory += sizes.prepared;
  auto* const bits = sizes.bits > 0 ? reinterpret_cast<uint32_t*>(memory) : nullptr;
  memory += sizes.bits;
  if (error == cudaSuccess) {
    error = make_lists<Variant>(making, made, captured, problem, sizes, memory, bits);
  }
  if (error == cudaSuccess && sizes.order > 0) {
    error = make_order(making, made.order_of_tiles, TileSort{made.lists, problem.batch},
                       memory + sizes.spans + sizes.lists);
  }
  if (error == cudaSuccess) {
    error = launch_variant<Variant>(row.row.kernels.data[i], kConfig, row.row, params, captured,
                                    made, on);
  }
  if (error == cudaSuccess && leaves_parts(params)) {
    return merge_splits(params, row.row.dtype, stream);
  }
  return error;
}

// The row of a config whose plain row is `row`.
template <auto kConfig, class Variant, Makers const& kMakers>
VariantRow make_variant_row(char const* key, ConfigMapRow<Forward> const& row) {
  auto of_variant = row;
  of_variant.smem_bytes = variant_smem_bytes<Variant>(kConfig, row);
  return {.key = key,
          .most_positions = Variant::kMostPositions,
          .row = of_variant,
          .makes_of_tensors = kMakesOfTensors<Variant>,
          .made = [](Forward::Params const& params) -> MadeBefore {
            ListedProblem const problem = listed_problem(kConfig, params);
            bool const has_order = takes_order(kConfig, params);
            return made_before(problem, has_order, true, Memory<Variant>(problem, has_order).sum());
          },
          .run = run<kConfig, Variant, kMakers>};
}

}  // namespace pyflash::variant
