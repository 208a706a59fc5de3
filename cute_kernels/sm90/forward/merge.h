// The splits of a tile, merged by the cluster of CTAs that computed them, through each other's shared memory:
//   lse = ln(sum_s exp(lse_s) + exp(sink)),  O = sum_s exp(lse_s - lse) O_s
// Splits are summed in order, so that the result is the same every time.
#pragma once

#include <cmath>

#include "cute_kernels/device_sm90.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/epilogue.h"
#include "cute_kernels/sm90/forward/shape.h"
#include "cute_kernels/sm90/forward/softmax.h"

namespace pyflash::sm90 {

using namespace cute;
using device::Site;

// acc_O, lse: this split's, normalised, partitioned like coords. memory: for a SmemLayoutPart and a lse for each row; all
// that was loaded there is used by MMAs that each warp has waited for. barrier: a named one of the warpgroup.
template <class Traits, ForwardFeatures kFeatures, class AccO, class Lse, class CoordTensor>
CUTE_DEVICE void merge_in_cluster(KernelParams const& params, Tile const& tile, AccO const& acc_O,
                                  Lse const& lse, CoordTensor const& coords, float* memory,
                                  int barrier) {
  using Element = typename Traits::Element;
  constexpr int kVector = 4;   // columns at a time
  constexpr int kAtATime = 8;  // splits, whose loads wait for each other's CTA together
  constexpr int kVectors = Traits::kHeadDim / kVector;
  auto const& problem = params.problem;
  int const tidx = device::fresh_thread_idx() % kWarpgroup;
  int const rank = device::cluster_rank();
  int const n_splits = device::cluster_size();
  Tensor part_O = make_tensor(make_smem_ptr(memory), typename Traits::SmemLayoutPart{});
  float* const part_lse = memory + cosize_v<typename Traits::SmemLayoutPart>;

  device::at(Site::part_r2s);
  device::named_barrier_sync(barrier, kWarpgroup);  // no warp's MMAs read the memory
  Tensor O = rows_by_columns(acc_O);                // ((2,MMA_M),(2,V,MMA_K))
  Tensor by_rows = rows_by_columns(coords);         // ((2,MMA_M),(2,V,MMA_K)) of (row, column)
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) {
    int const row = get<0>(by_rows(r, 0));
    if (row_out<Traits, kFeatures>(params, tile, tile.first_query, row).exists) {
      CUTE_UNROLL
      for (int c = 0; c < size<1>(O); c += 2) {
        device::store(reinterpret_cast<float2*>(&part_O(row, get<1>(by_rows(0, c)))),
                      float2{O(r, c), O(r, c + 1)});
      }
      if (get<1>(by_rows(0, 0)) == 0) {
        device::store(part_lse + row, lse(r));
      }
    }
  }
  device::cluster_sync();  // the parts are visible

  // Each thread of the cluster merges some columns of a row.
  int const n_rows = count_rows<Traits, kFeatures>(params, tile);
  for (int i = tidx * n_splits + rank; i < n_rows * kVectors; i += kWarpgroup * n_splits) {
    int const row = i / kVectors;
    int const column = i % kVectors * kVector;
    if (kFeatures.predicated_head_dim && column >= problem.d_head) {
      continue;
    }
    device::at(Site::sinks_g2r);
    float maximum = -INFINITY;
    if (problem.sinks.data != nullptr) {  // which are no feature where keys are split
      PackedRow const unpacked = unpack_row<Traits>(params, row);
      int const group = Traits::kPackGqa ? params.order.by_group.divisor : 1;
      maximum = load_sink<Element>(problem.sinks, tile.head * group + unpacked.head,
                                   tile.first_query + unpacked.query);
    }
    device::at(Site::part_s2r);
    auto const* const address = reinterpret_cast<float4 const*>(&part_O(row, column));
    float sum = maximum == -INFINITY ? 0.f : 1.f;
    float4 merged{};
    CUTE_NO_UNROLL
    for (int first = 0; first < n_splits; first += kAtATime) {
      float weights[kAtATime];
      float4 values[kAtATime];
      CUTE_UNROLL
      for (int j = 0; j < kAtATime; ++j) {
        int const split = min(first + j, n_splits - 1);
        float const weight = device::load_from_rank(part_lse + row, split);
        weights[j] = first + j < n_splits ? weight : -INFINITY;
        values[j] = device::load_from_rank(address, split);
      }
      float const before = maximum;
      CUTE_UNROLL
      for (float weight : weights) {
        maximum = fmaxf(maximum, weight);
      }
      float const shift = maximum == -INFINITY ? 0.f : maximum;  // so that -inf - shift is no NaN
      float const correction = device::exp2((before - shift) * kLog2e);
      sum *= correction;
      merged = {merged.x * correction, merged.y * correction, merged.z * correction,
                merged.w * correction};
      CUTE_UNROLL
      for (int j = 0; j < kAtATime; ++j) {
        float const weight = device::exp2((weights[j] - shift) * kLog2e);
        sum += weight;
        // NOTE: 0 times an infinity is NaN; a branch on `first + j` would make the loads wait for each other.
        auto const add = [&](float& to, float x) { to = weight == 0.f ? to : fmaf(weight, x, to); };
        add(merged.x, values[j].x);
        add(merged.y, values[j].y);
        add(merged.z, values[j].z);
        add(merged.w, values[j].w);
      }
    }
    device::at(Site::O_r2g);
    RowOut const out = row_out<Traits, kFeatures>(params, tile, tile.first_query, row);
    float const inverse = sum == 0.f ? 0.f : device::reciprocal(sum);
    device::store(reinterpret_cast<uint2*>(static_cast<Element*>(problem.o) + out.o + column),
                  uint2{device::pack2(merged.x * inverse, merged.y * inverse, Element{}),
                        device::pack2(merged.z * inverse, merged.w * inverse, Element{})});
    if (column == 0) {
      device::at(Site::lse_r2g);
      device::store(problem.lse + out.lse, sum == 0.f ? -INFINITY : maximum + device::log(sum));
    }
  }
  device::cluster_sync();  // no CTA ends while others read its shared memory
}

}  // namespace pyflash::sm90
