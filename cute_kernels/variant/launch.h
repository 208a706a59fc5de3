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

// arguments: of the very types that the kernel takes.
template <class... Arguments>
cudaError_t launch_maker(void const* kernel, int64_t n_ctas, int n_threads, cudaStream_t stream,
                         Arguments const&... arguments) {
  if (n_ctas == 0) {
    return cudaSuccess;
  }
  if (n_ctas > INT32_MAX) {
    return cudaErrorInvalidConfiguration;
  }
  void const* addresses[] = {&arguments...};
  return cudaLaunchKernel(kernel, dim3(unsigned(n_ctas)), dim3(n_threads),
                          const_cast<void**>(addresses), 0, stream);
}

// Launches what writes the tables at `memory`.
template <class Variant>
cudaError_t make_prepared(Makers const& makers, typename Variant::Params const& captured,
                          ListedProblem const& problem, int* memory, cudaStream_t stream) {
  constexpr int kThreads = 256;
  int64_t const size = prepared_size<Variant>(problem);
  return launch_maker(makers.prepare, ceil_div(size, int64_t(kThreads)), kThreads, stream, captured,
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
cudaError_t write_lists(Makers const& makers, int64_t n_lists, int n_blocks, cudaStream_t stream,
                        Arguments const&... arguments) {
  constexpr int kLong = 128;
  constexpr int kWarps = 4;
  bool const are_long = n_blocks > kLong;
  int const warps = are_long ? kMostWarpsOfList : 1;
  int const lists_of_cta = are_long ? 1 : kWarps;
  return launch_maker(makers.list, ceil_div(n_lists, int64_t(lists_of_cta)),
                      warps * lists_of_cta * 32, stream, arguments..., warps);
}

// Launches what judges the blocks of lists; a CTA judges several where they are many, so that bounds of one do not wait for those
// of another.
template <class... Arguments>
cudaError_t judge_blocks(Makers const& makers, cudaStream_t stream, BlockLists const& lists,
                         Arguments const&... arguments) {
  constexpr int kCtas = 2048;
  int64_t const n_blocks = lists.n_lists() * lists.blocks;
  int const count = int(clamp(n_blocks / kCtas, int64_t(1), int64_t(kMostJudged)));
  return launch_maker(makers.judge, ceil_div(n_blocks, int64_t(count)), kJudgingThreads, stream,
                      arguments..., count);
}

// Launches what writes the lists at `memory` behind the spans, and where there are bits of the mask, these before them at
// `bits`; there is nothing to do without a mask.
template <class Variant>
cudaError_t make_lists(Makers const& makers, Made<Variant>& made,
                       typename Variant::Params const& captured, ListedProblem problem,
                       Memory<Variant> const& sizes, int* memory, uint32_t* bits,
                       cudaStream_t stream) {
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
          judge_blocks(makers, stream, lists, captured, made.prepared, problem, lists, bits);
      if (error != cudaSuccess) {
        return error;
      }
    }
    return write_lists(makers, lists.n_lists() * made.spans.parts(), lists.blocks, stream, captured,
                       problem, lists, made.spans);
  }
  return cudaSuccess;
}

// Launches what writes the order of tiles at `memory`, where there are some, and no more than are sorted.
template <class Sort>
cudaError_t make_order(Makers const& makers, int const*& order, Sort const& sort, int* memory,
                       cudaStream_t stream) {
  int64_t const n_ctas = int64_t(ceil_div(sort.group_size(), kSortThreads)) * sort.n_groups();
  if (n_ctas == 0 || n_ctas > INT32_MAX) {
    return cudaSuccess;
  }
  order = memory;
  return launch_maker(makers.sort, n_ctas, kSortThreads, stream, sort, memory);
}

// Runs a config's kernel with a variant. Overloads of the family launch it, and say whether it takes an order of tiles and how much
// shared memory.
template <auto kConfig, class Variant, Makers const& kMakers>
int run(VariantRow const& row, size_t i, Forward::Params const& params, Arguments const& arguments,
        int* memory, void* stream) {
  auto const on = static_cast<cudaStream_t>(stream);
  auto const captured = Variant::params_of(arguments);
  ListedProblem const problem = listed_problem(kConfig, params);
  Memory<Variant> const sizes(problem, takes_order(kConfig, params));
  Made<Variant> made{{}, prepared_tables<Variant>(problem, memory)};
  cudaError_t error = make_prepared<Variant>(kMakers, captured, problem, memory, on);
  memory += sizes.prepared;
  auto* const bits = sizes.bits > 0 ? reinterpret_cast<uint32_t*>(memory) : nullptr;
  memory += sizes.bits;
  if (error == cudaSuccess) {
    error = make_lists<Variant>(kMakers, made, captured, problem, sizes, memory, bits, on);
  }
  if (error == cudaSuccess && sizes.order > 0) {
    error = make_order(kMakers, made.order_of_tiles, TileSort{made.lists, problem.batch},
                       memory + sizes.spans + sizes.lists, on);
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
  return {
      .key = key,
      .most_positions = Variant::kMostPositions,
      .row = of_variant,
      .n_ints = [](Forward::Params const& params) -> int64_t {
        return Memory<Variant>(listed_problem(kConfig, params), takes_order(kConfig, params)).sum();
      },
      .run = run<kConfig, Variant, kMakers>};
}

}  // namespace pyflash::variant
