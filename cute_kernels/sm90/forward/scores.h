// S = QK^T by fp32 arithmetic from global memory, where the MMAs' result is lost: slow, and rare.
#pragma once

#include <cute/tensor.hpp>

#include "cute_kernels/alibi.h"
#include "cute_kernels/device_sm90.h"
#include "cute_kernels/dropout.h"
#include "cute_kernels/sm90/columns.h"
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

// NOTE: the compiler would rather compute what counters share again.
CUTE_DEVICE void settle(PhiloxOfLastWord& random) {
  for (uint32_t* word : {&random.begin, &random.first0, &random.second0, &random.second2}) {
    *word = device::settled(*word);
  }
  CUTE_UNROLL
  for (int i = 0; i < PhiloxOfLastWord::kKeys; ++i) {
    random.keys0[i] = device::settled(random.keys0[i]);
    random.keys1[i] = device::settled(random.keys1[i]);
  }
}

// What is dropped of P of a tile, in a computing warpgroup: a block of keys at a time, whose random bytes are drawn ahead.
template <class Traits>
struct TileDropout {
  static constexpr int kBlockN = Traits::kBlockN;
  static_assert(!Traits::kPackGqa, "rows of a tile are of one head");

  DropoutOfRows<1, kBlockN> rows;
  uint32_t limits;
  uint32_t words[kBlockN / 8];  // of every 8 keys

  // first_query: the warpgroup's.
  template <class Params>
  CUTE_DEVICE TileDropout(Params const& params, Tile const& tile, int first_query)
      : rows(load_dropout(params.dropout, params.problem.heads, tile.batch, tile.head),
             [&](int) { return first_query / 16 + device::thread_idx() % kWarpgroup / 32; }),
        limits(device::limits_of_bytes(params.dropout.largest_kept + 1)) {
    settle(rows.random[0]);
  }

  // NOTE: settled, or the compiler would draw some of them where they are used.
  CUTE_DEVICE void draw(int n_block) {
    n_block = device::settled(n_block);
    CUTE_UNROLL
    for (int k = 0; k < kBlockN / 16; ++k) {
      rows.draw(k, n_block,
                [&](int, int tile, uint32_t word) { words[2 * k + tile] = device::settled(word); });
    }
  }

  template <class FragmentP>
  CUTE_DEVICE void drop(FragmentP& operand) const {
    Tensor pairs = recast<uint32_t>(operand);
    CUTE_UNROLL
    for (int i = 0; i < kBlockN / 8; ++i) {
      drop_pairs<typename Traits::Element>(pairs(2 * i), pairs(2 * i + 1), words[i], limits);
    }
  }
};

}  // namespace pyflash::sm90
