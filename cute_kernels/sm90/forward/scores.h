// S = QK^T by fp32 arithmetic from global memory, where the MMAs' result is lost: slow, and rare.
#pragma once

#include "cute_kernels/alibi.h"
#include "cute_kernels/device_sm90.h"
#include "cute_kernels/dropout.h"
#include "cute_kernels/sm90/columns.h"
#include "cute_kernels/sm90/cute.h"
#include "cute_kernels/sm90/forward/problem.h"
#include "cute_kernels/sm90/gemm.h"

namespace pyflash::sm90 {

using namespace cute;

// q . k, of d_head elements, a multiple of 8.
template <class Element>
CUTE_DEVICE float dot(Element const* q, Element const* k, int d_head) {
  constexpr int kVector = 8;  // elements in 16 bytes
  float sum = 0.f;
  CUTE_NO_UNROLL
  for (int column = 0; column < d_head; column += kVector) {
    uint4 const q_words = device::load(reinterpret_cast<uint4 const*>(q + column));
    uint4 const k_words = device::load(reinterpret_cast<uint4 const*>(k + column));
    CUTE_UNROLL
    for (int i = 0; i < kVector; ++i) {
      sum = fmaf(float(reinterpret_cast<Element const*>(&q_words)[i]),
                 float(reinterpret_cast<Element const*>(&k_words)[i]), sum);
    }
  }
  return sum;
}

// This thread's scores of a block of keys, all of which exist. first_query: the warpgroup's. Rows that do not exist have
// another's.
// NOTE: it needs few registers, of which the loop that it is called from has none left: one score at a time, and nothing that
// could be computed here is handed over.
template <class Traits, ForwardFeatures kFeatures, class AccS>
CUTE_DEVICE void compute_scores(KernelParams const& params, Tile const& tile, int first_query,
                                int n_block, AccS& acc_S) {
  using Element = typename Traits::Element;
  device::at(device::Site::QK_g2r);
  auto const& problem = params.problem;
  Tensor coords = coords_of<Traits::kBlockN>(device::fresh_thread_idx() % kWarpgroup);
  int const group = Traits::kPackGqa ? params.order.by_group.divisor : 1;
  float volatile scores[decltype(size(acc_S))::value];
  CUTE_NO_UNROLL
  for (int i = 0; i < size(acc_S); ++i) {
    PackedRow const row = unpack_row<Traits>(params, get<0>(coords(i)));
    int const head = tile.head * group + row.head;
    int const query = tile.q_rows.begin + min(first_query + row.query, tile.q_rows.length - 1);
    if constexpr (kFeatures.paged_kv) {
      KvSource const kv = params.kv();
      KeyPlace const place = kv.pages.place_of(
          tile.batch, n_block * Traits::kBlockN + get<1>(coords(i)), device::Loader{});
      // Keys of a page that does not exist are zeros.
      scores[i] = kv.pages.exists(place.batch)
                      ? dot(problem.q_strides.at(static_cast<Element const*>(problem.q), tile.batch,
                                                 head, query),
                            kv.k.template at<Element>(place.batch, kv.head_of(head, problem.heads),
                                                      place.row),
                            problem.d_head)
                      : 0.f;
      continue;
    }
    int const key = problem.kv().sequences.begin_of(tile.batch, device::Loader{}) +
                    n_block * Traits::kBlockN + get<1>(coords(i));
    scores[i] = dot(
        problem.q_strides.at(static_cast<Element const*>(problem.q), tile.batch, head, query),
        problem.template k_at<Element>(tile.batch, problem.kv().head_of(head, problem.heads), key),
        problem.d_head);
  }
  CUTE_UNROLL
  for (int i = 0; i < size(acc_S); ++i) {
    acc_S(i) = scores[i];
  }
}

// Adds ALiBi to this thread's scores of a block of keys. first_query: the warpgroup's.
template <class Traits, ForwardFeatures kFeatures, class AccS>
CUTE_DEVICE void add_alibi_to(AccS& acc_S, KernelParams const& params, Tile const& tile,
                              int first_query, int n_block) {
  if (params.problem.alibi_slopes.data == nullptr) {
    return;
  }
  Tensor S = rows_by_columns(acc_S);  // ((2,MMA_M),(2,V,MMA_N))
  Tensor coords = coords_of<Traits::kBlockN>(device::fresh_thread_idx() % kWarpgroup);
  Tensor by_rows = rows_by_columns(coords);
  int const group = Traits::kPackGqa ? params.order.by_group.divisor : 1;
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) {
    PackedRow const row = unpack_row<Traits>(params, get<0>(by_rows(r, 0)));
    float const slope = load_slope<typename Traits::Element>(
        params.problem.alibi_slopes, params.problem.inverse_scale_log2, tile.batch,
        tile.head * group + row.head);
    int const first_key = n_block * Traits::kBlockN + get<1>(by_rows(r, 0));
    add_alibi(S, r, slope, first_query + row.query + tile.diagonal() - first_key, column_of);
  }
}

// Dropout of a tile. first_query: the warpgroup's.
template <class Traits, class Params>
CUTE_DEVICE DropoutOfOperand<Traits::kBlockN> dropout_of(Params const& params, Tile const& tile,
                                                         int first_query) {
  static_assert(!Traits::kPackGqa, "rows of a tile are of one head");
  int const thread = device::fresh_thread_idx() % kWarpgroup;
  return {load_dropout(params.dropout, params.problem.heads, tile.batch, tile.head),
          (first_query + thread / 32 * 16) / 16, thread % 32};
}

}  // namespace pyflash::sm90
