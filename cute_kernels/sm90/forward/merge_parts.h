// The parts of a tile that equal shares of the keys left, merged by CTAs that have some of them:
//   lse = ln(sum_p exp(lse_p) + exp(sink)),  O = sum_p exp(lse_p - lse) O_p
// They wait for CTAs of lower indices alone, which have begun before them. Parts are summed in order, so that the result is the same every
// time.
#pragma once

#include <cmath>

#include "cute_kernels/common/shares.h"
#include "cute_kernels/device_sm90.h"
#include "cute_kernels/features.h"
#include "cute_kernels/row_softmax.h"
#include "cute_kernels/sinks.h"
#include "cute_kernels/sm90/forward/kernel_params.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90 {

using device::Site;

// What parts of four columns of a row come to, as if they were all.
struct MergedParts {
  float maximum = -INFINITY;  // of their lse
  float sum = 0;              // of exp(lse - maximum)
  float o[4] = {};            // sum of exp(lse - maximum) O

  CUTE_DEVICE float shift() const { return maximum == -INFINITY ? 0.f : maximum; }
  // From now on beside parts of a larger maximum.
  CUTE_DEVICE void raise(float to) {
    float const before = maximum;
    maximum = fmaxf(maximum, to);
    float const scale = device::exp2((before - shift()) * kLog2e);
    sum *= scale;
    CUTE_UNROLL
    for (float& value : o) {
      value *= scale;
    }
  }
  CUTE_DEVICE void add(float lse, device::Tagged const& low, device::Tagged const& high) {
    float const weight = device::exp2((lse - shift()) * kLog2e);
    sum += weight;
    o[0] = fmaf(weight, low.x, o[0]);
    o[1] = fmaf(weight, low.y, o[1]);
    o[2] = fmaf(weight, high.x, o[2]);
    o[3] = fmaf(weight, high.y, o[3]);
  }
};

// What a CTA merges of a tile whose parts others left, and it one. The CTA of every eighth part merges these eight into one, and
// that of the last part what is then left.
struct Merge {
  static constexpr int kTogether = 8;

  Parts parts;
  int part = 0;  // of this CTA

  CUTE_DEVICE bool is_last() const { return part + 1 == parts.count(); }
  CUTE_DEVICE bool is_any() const {
    return parts.count() > 0 && (is_last() || part % kTogether == kTogether - 1);
  }
  // That have been merged into one each, before the last.
  CUTE_DEVICE int n_merged() const { return is_last() ? part / kTogether : 0; }
  // The first of the others.
  CUTE_DEVICE int first() const { return part / kTogether * kTogether; }
  CUTE_DEVICE int count() const { return n_merged() + part - first() + 1; }
};

// Where these are.
struct TaggedParts {
  device::Tagged* lse;  // of the first row of the first part
  device::Tagged* o;
  int rows_of_part;
  int stride;  // rows from a part to the next
  int pairs;   // of columns, of a row
  int n_merged;
  int first;

  CUTE_DEVICE TaggedParts(KernelParams const& params, Merge const& merge)
      : rows_of_part(params.shares.rows_of_part),
        stride(2 * merge.parts.abreast * params.shares.rows_of_part),
        pairs(params.problem.d_head / 2),
        n_merged(merge.n_merged()),
        first(merge.first()) {
    int64_t const first_row = int64_t(merge.parts.place(0)) * rows_of_part;
    lse = reinterpret_cast<device::Tagged*>(params.problem.lse_partial) + first_row;
    o = reinterpret_cast<device::Tagged*>(params.problem.o_partial) + first_row * pairs;
  }
  // The first row, from that of the tile's first part on. NOTE: a CTA that merges eight parts has none that begins a tile, and puts
  // what they come to in its place.
  CUTE_DEVICE int row_of_merged(int part) const { return part * stride; }
  CUTE_DEVICE int row_of(int i) const {
    int const part =
        i < n_merged ? i * Merge::kTogether + Merge::kTogether - 1 : first + i - n_merged;
    return row_of_merged(part) - (i < n_merged || part == 0 ? 0 : rows_of_part);
  }
  CUTE_DEVICE device::Tagged* lse_at(int row) const { return lse + row; }
  CUTE_DEVICE device::Tagged* o_at(int row, int column) const {
    return o + row * pairs + column / 2;
  }
};

// Adds n parts of a row from column on, kAtATime of them, which are in flight together.
template <int kAtATime>
CUTE_DEVICE void add_parts(MergedParts& merged, TaggedParts const& from, int n, int row, int column,
                           uint64_t tag) {
  for (int first = 0; first < n; first += kAtATime) {
    device::Tagged const* addresses[3 * kAtATime];
    device::Tagged values[3 * kAtATime];  // lse, and O twice
    CUTE_UNROLL
    for (int p = 0; p < kAtATime; ++p) {
      // NOTE: the last stands for those that are not there, so that no load waits for a branch.
      int const row_of_part = from.row_of(min(first + p, n - 1)) + row;
      addresses[3 * p] = from.lse_at(row_of_part);
      addresses[3 * p + 1] = from.o_at(row_of_part, column);
      addresses[3 * p + 2] = from.o_at(row_of_part, column) + 1;
    }
    device::load_when_tagged(values, addresses, tag);
    float maximum = -INFINITY;
    CUTE_UNROLL
    for (int p = 0; p < kAtATime; ++p) {
      maximum = fmaxf(maximum, values[3 * p].x);
    }
    merged.raise(maximum);
    CUTE_UNROLL
    for (int p = 0; p < kAtATime; ++p) {
      if (first + p < n) {  // NOTE: a weight of 0 would make NaN of an infinity
        merged.add(values[3 * p].x, values[3 * p + 1], values[3 * p + 2]);
      }
    }
  }
}

// By a warpgroup, after all that it stores. barrier: a named one of it.
template <class Traits, ForwardFeatures kFeatures>
CUTE_DEVICE void merge_parts(KernelParams const& params, Merge const& merge, int barrier) {
  using Element = typename Traits::Element;
  constexpr int kColumns = 4;  // of a thread
  constexpr int kVectors = Traits::kHeadDim / kColumns;
  if (!merge.is_any()) {
    return;
  }
  device::named_barrier_sync(barrier, kWarpgroup);  // this CTA's part is stored
  auto const& problem = params.problem;
  Parts const& parts = merge.parts;
  uint64_t const tag = params.shares.tag;
  TaggedParts const from(params, merge);
  bool const is_last = merge.is_last();
  int const n = merge.count();
  Rows const q_rows = problem.q_sequences().rows_of(parts.sequence, device::Loader{});
  int const batch = problem.q_sequences().tensor_batch(parts.sequence);
  int const group = Traits::kPackGqa ? params.order.by_group.divisor : 1;
  int const n_rows = q_rows.length * group;
  for (int i = device::fresh_thread_idx() % kWarpgroup; i < n_rows * kVectors; i += kWarpgroup) {
    int const row = i / kVectors;
    int const column = i % kVectors * kColumns;
    if (kFeatures.predicated_head_dim && column >= problem.d_head) {
      continue;
    }
    PackedRow const unpacked = unpack_row<Traits>(params, row);
    int const head = parts.head * group + unpacked.head;
    MergedParts merged;
    if constexpr (kFeatures.sinks) {
      device::at(Site::sinks_g2r);
      if (problem.sinks.data != nullptr && is_last) {
        merged.maximum = load_sink<Element>(problem.sinks, head, unpacked.query);
        merged.sum = merged.maximum == -INFINITY ? 0.f : 1.f;
      }
    }
    device::at(Site::O_r2g);
    // NOTE: most tiles are of two or three; each load more makes all that wait slower.
    if (n <= 2) {
      add_parts<2>(merged, from, n, row, column, tag);
    } else if (n <= 4) {
      add_parts<4>(merged, from, n, row, column, tag);
    } else {
      add_parts<8>(merged, from, n, row, column, tag);
    }
    float const inverse = merged.sum == 0.f ? 0.f : device::reciprocal(merged.sum);
    float const lse = merged.sum == 0.f ? -INFINITY : merged.maximum + device::log(merged.sum);
    CUTE_UNROLL
    for (float& value : merged.o) {
      value *= inverse;
    }
    if (is_last) {
      int64_t const at = batch * problem.o_strides.batch + head * problem.o_strides.head +
                         (q_rows.begin + unpacked.query) * problem.o_strides.row + column;
      device::store(reinterpret_cast<uint2*>(static_cast<Element*>(problem.o) + at),
                    uint2{device::pack2(merged.o[0], merged.o[1], Element{}),
                          device::pack2(merged.o[2], merged.o[3], Element{})});
    } else {
      int const row_of_merged = from.row_of_merged(merge.part) + row;
      device::store_tagged(from.o_at(row_of_merged, column), {tag, merged.o[0], merged.o[1]});
      device::store_tagged(from.o_at(row_of_merged, column) + 1, {tag, merged.o[2], merged.o[3]});
      if (column == 0) {
        device::store_tagged(from.lse_at(row_of_merged), {tag, lse, 0});
      }
    }
    if (is_last && column == 0) {
      device::at(Site::lse_r2g);
      device::store(problem.lse + batch * problem.lse_strides.batch +
                        head * problem.lse_strides.head + q_rows.begin + unpacked.query,
                    lse);
    }
    // So that a launch that a graph repeats finds its tag nowhere.
    for (int p = 0; p < n; ++p) {
      device::store_tagged(from.o_at(from.row_of(p) + row, column), {});
      device::store_tagged(from.o_at(from.row_of(p) + row, column) + 1, {});
    }
  }
  device::named_barrier_sync(barrier, kWarpgroup);  // all have read lse
  for (int i = device::fresh_thread_idx() % kWarpgroup; i < n_rows * n; i += kWarpgroup) {
    device::store_tagged(from.lse_at(from.row_of(i / n_rows) + i % n_rows), {});
  }
}

}  // namespace pyflash::sm90
