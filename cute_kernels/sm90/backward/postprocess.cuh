// The sums of dQ, scaled and in 16 bits: those of all heads, or where sums are recycled, of the last ones. A CTA has a piece of the
// queries of a head, and a warpgroup for each slab of their columns.
#pragma once

#include "cute_kernels/common/backward_preprocess.cuh"
#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/backward/round_sums.h"
#include "cute_kernels/sm90/backward/shape.h"

namespace pyflash::sm90::backward {

// kColumns: those of the config.
template <int kColumns>
inline constexpr int kPostprocessThreads = kColumns / PieceDQ<kColumns>::kSlab * kWarpgroup;

template <class Element, int kColumns>
struct PostprocessStorage {
  alignas(1024) Element rows[kQueriesOfPiece * kColumns];
};

template <class Element, int kColumns>
CUTE_DEVICE void postprocess_cta(BackwardParams const& problem) {
  auto& smem = device::dynamic_smem<PostprocessStorage<Element, kColumns>>();
  device::wait_for_previous_kernel();
  device::launch_dependents();
  int const row = device::block_idx() * kQueriesOfPiece;
  int const rows_of_head = problem.group() * problem.padded_q;
  int const head = problem.last_head_in(row / rows_of_head);
  QueryPiece const piece =
      QueryPiece::of(problem, (row + problem.rows_before_sums(head)) / kQueriesOfPiece);
  int const thread = device::thread_idx();
  int const slab = thread / kWarpgroup;
  using Piece = PieceDQ<kColumns>;
  float4 const* const vectors =
      vectors_of<Piece>(problem.sums_of(problem.first_slice_row() + row), slab);
  store_rounded<Element, Piece>(problem, piece, slab,
                                smem.rows + thread / 32 * kWarpRows * Piece::kSlab,
                                [&](int i) { return device::load(vectors + i * 32); });
}

}  // namespace pyflash::sm90::backward
