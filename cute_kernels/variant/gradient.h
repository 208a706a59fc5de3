// A variant in kernels of gradients: the blocks of queries that a tile of keys walks through, and scores of a block to P, with
// keys as rows.
#pragma once

#include <type_traits>

#include <cute/tensor_impl.hpp>

#include "cute_kernels/common/backward_tile.h"
#include "cute_kernels/device.h"
#include "cute_kernels/row_softmax.h"
#include "cute_kernels/sites.h"
#include "cute_kernels/softcap.h"
#include "cute_kernels/variant/kernel_params.h"
#include "cute_kernels/variant/sums.h"

namespace pyflash::variant {

// What a kernel's params have of a variant: nothing where there is none.
template <class Variant>
struct Given {
  Made<Variant> const& made;
  typename Variant::Params const& captured;

  template <class Params>
  CUTE_DEVICE explicit Given(Params const& params) : made(params), captured(params.captured) {}
};
template <>
struct Given<NoVariant> {
  template <class Params>
  CUTE_DEVICE explicit Given(Params const&) {}
};

// Tables and lists have entries for sequences as long as the longest: whatever cu_seqlens hold, nothing is read behind them.
template <class Variant, int kBlockM, BackwardFeatures kFeatures>
CUTE_DEVICE void limit_lengths(backward::Tile<kFeatures>& tile) {
  if constexpr (kIsVariant<Variant> && kFeatures.packed) {
    AttentionGradients const& problem = tile.problem;
    tile.queries_found.length = smaller(tile.queries_found.length, problem.q_sequences.longest);
    tile.keys_found.length = smaller(tile.keys_found.length, problem.k_sequences.longest);
    int const most = ceil_div(problem.q_sequences.longest, kQueriesOfPiece) * kQueriesOfPiece;
    tile.blocks.end = smaller(tile.blocks.end, ceil_div(most, kBlockM));
  }
}

// Where the sums of dQ have an order, each block of keys takes its turn, whatever the mask shows of it.
template <BackwardFeatures kFeatures, class Variant>
inline constexpr bool kWalksLists = Variant::kHasMask && !kFeatures.deterministic;

// backward::MBlocks of the blocks of queries that a list has.
template <BackwardFeatures kFeatures, int kBlockN, class Variant>
struct ListedMBlocks {
  backward::Tile<kFeatures> const& tile;
  BlockLists const& lists;
  int heads_left = 0;
  int place = 0;  // in the list of the head
  int length = 0;
  int head = 0;
  int m_block = 0;
  bool is_cut = false;

  CUTE_DEVICE ListedMBlocks(backward::Tile<kFeatures> const& tile, Given<Variant> const& given)
      : tile(tile), lists(given.made.lists) {
    if (tile.blocks.size() > 0) {
      heads_left = tile.n_heads;
      head = tile.first_head;
      open();
    }
  }
  CUTE_DEVICE bool exists() const { return heads_left > 0; }
  CUTE_DEVICE void advance() {
    if (++place < length) {
      find_block();
      return;
    }
    ++head;
    --heads_left;
    open();
  }

 private:
  CUTE_DEVICE int const* list() const {
    return lists.list(tile.sequence(), head, tile.first_key / kBlockN);
  }
  CUTE_DEVICE void find_block() {
    ListedBlock const block = ListedBlock::of(list()[1 + place]);
    m_block = block.number;
    is_cut = block.is_cut;
  }
  // The first block of this head, or of the next one that has any.
  CUTE_DEVICE void open() {
    place = length = 0;
    for (; heads_left > 0; ++head, --heads_left) {
      length = list()[0];
      if (length > 0) {
        find_block();
        return;
      }
    }
  }
};

// backward::MBlocks, of which a mask may cut every one.
template <BackwardFeatures kFeatures, class Variant>
struct AllMBlocks : backward::MBlocks<kFeatures> {
  static constexpr bool is_cut = Variant::kHasMask;

  template <class Given>
  CUTE_DEVICE AllMBlocks(backward::Tile<kFeatures> const& tile, Given const&)
      : backward::MBlocks<kFeatures>(tile) {}
};

template <BackwardFeatures kFeatures, int kBlockN, class Variant>
using BlocksOf =
    std::conditional_t<kWalksLists<kFeatures, Variant>, ListedMBlocks<kFeatures, kBlockN, Variant>,
                       AllMBlocks<kFeatures, Variant>>;

// Where in a block a thread's scores are, and whether something cuts the block.
struct Place {
  int first_key;
  int first_query;
  int head;
  bool cuts_variant;  // the variant's mask
  bool cuts_band;     // windows, or an end of queries or keys
};

// Whether what takes the place of S^T is P^T times a slope, and not P^T itself.
template <class Variant, BackwardFeatures kFeatures>
inline constexpr bool kHasSlopes = kFeatures.softcap;
template <class Variant, BackwardFeatures kFeatures>
  requires kIsVariant<Variant>
inline constexpr bool kHasSlopes<Variant, kFeatures> = Variant::kHasSlope || kFeatures.softcap;

// Whether gradients of captured tensors are summed, too.
template <class Variant>
inline constexpr bool kHasSums = requires { Variant::kSums; };
// Whether these, or the slopes, are computed of the scores when dP is known: then S^T stays where it is.
template <class Variant, BackwardFeatures kFeatures>
inline constexpr bool kKeepsScores = false;
template <class Variant, BackwardFeatures kFeatures>
  requires kHasSums<Variant>
inline constexpr bool kKeepsScores<Variant, kFeatures> =
    Variant::kSumsReadScore || kHasSlopes<Variant, kFeatures>;
// Whether P^T is left as pairs of 16 bits alone.
template <class Variant, BackwardFeatures kFeatures>
inline constexpr bool kMakesPairs =
    kHasSlopes<Variant, kFeatures> || kKeepsScores<Variant, kFeatures>;

// A thread's scores of a block: of its two keys, eight apart, and queries that lie `offset` from its first.
template <class Variant, BackwardFeatures kFeatures>
struct GradientScores {
  static constexpr int kKeyStep = 8;

  backward::Tile<kFeatures> const& tile;
  typename Variant::Params const& captured;
  Place const& at;
  Lengths const lengths;
  int const batch;
  typename Variant::Prepared const prepared;
  typename Variant::Uniform const uniform;
  bool const is_capped;
  float const scale;  // of a raw score, or of one that is capped
  typename Variant::Column columns[2];

  CUTE_DEVICE GradientScores(backward::Tile<kFeatures> const& tile, Given<Variant> const& given,
                             Place const& at)
      : tile(tile),
        captured(given.captured),
        at(at),
        lengths{tile.queries().length, tile.keys().length, 0, 0},
        batch(tile.sequence()),
        prepared(Variant::prepared(given.made.prepared, batch, at.head)),
        uniform(Variant::uniform(captured, lengths, batch, at.head)),
        is_capped(kFeatures.softcap && tile.problem.softcap.cap != 0.f),
        scale(is_capped ? kLn2 : tile.problem.softmax_scale) {
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      columns[r] = Variant::column(captured, lengths, prepared, uniform, batch, at.head,
                                   at.first_key, kKeyStep * r);
    }
  }

  CUTE_DEVICE auto row(int offset) const {
    return Variant::row(captured, lengths, prepared, uniform, batch, at.head, at.first_query,
                        offset);
  }
  CUTE_DEVICE auto distance(int r, int offset) const {
    return Variant::distance(captured, lengths, prepared, uniform, batch, at.head,
                             at.first_key - at.first_query, kKeyStep * r - offset);
  }

  // The exponent of P, in base 2 but for lse, and the slope of the score.
  CUTE_DEVICE ScoreAndSlope exponent(int r, int offset, typename Variant::Row const& row, float raw,
                                     float lse) const {
    if constexpr (!Variant::kHasScore && !kFeatures.softcap) {
      return {fmaf(raw, scale * kLog2e, -lse), 1.f};
    }
    auto const [score, of_cap] = capped(raw);
    ScoreAndSlope const made = score_and_slope(r, offset, row, score);
    return {fmaf(made.score, kLog2e, -lse), made.slope * of_cap};
  }

  // A raw score, capped where scores are, and the derivative of that.
  CUTE_DEVICE ScoreAndSlope capped(float raw) const {
    float slope = 1.f;
    if (is_capped) {
      float const capped = pyflash::tanh(tile.problem.softcap.inner * raw);
      slope = (1.f - capped) * (1.f + capped);
      raw = tile.problem.softcap.outer * capped;
    }
    return {raw, slope};
  }
  // The variant's score, and its slope. raw: as `capped` returns it.
  CUTE_DEVICE ScoreAndSlope score_and_slope(int r, int offset, typename Variant::Row const& row,
                                            float raw) const {
    return Variant::template score_and_slope<false>(
        captured, lengths, uniform, row, columns[r], distance(r, offset), batch, at.head,
        at.first_query + offset, at.first_key, kKeyStep * r, raw, scale);
  }
  // The derivative of the score by load kSum. raw: as `capped` returns it.
  template <int kSum>
  CUTE_DEVICE float derivative(int r, int offset, typename Variant::Row const& row,
                               float raw) const {
    return Variant::template derivative<kSum>(
        captured, lengths, uniform, row, columns[r], distance(r, offset), batch, at.head,
        at.first_query + offset, at.first_key, kKeyStep * r, raw, scale);
  }
  // Where the sum is that a pair's gradient is added to.
  template <int kSum>
  CUTE_DEVICE float* place(int r, int offset, typename Variant::Row const& row) const {
    return Variant::template place<kSum>(captured, lengths, uniform, row, columns[r],
                                         distance(r, offset), batch, at.head,
                                         at.first_query + offset, at.first_key, kKeyStep * r);
  }

  // The queries that windows and ends show to a key, by their offsets.
  CUTE_DEVICE Interval shown(int r) const {
    int const key = at.first_key + kKeyStep * r;
    auto const queries = tile.queries_from(key);
    // NOTE: keys past the end score 0, which may be far above lse.
    int const end = key < tile.keys().length ? queries.end(0) : 0;
    return {queries.begin(0) - at.first_query, end - at.first_query};
  }
  CUTE_DEVICE bool counts(int r, int offset, typename Variant::Row const& row) const {
    return Variant::template counts<false>(captured, lengths, uniform, row, columns[r],
                                           distance(r, offset), batch, at.head,
                                           at.first_query + offset, at.first_key, kKeyStep * r);
  }
};

// S^T to P^T, in place, or where scores have slopes to P^T times the slope, and to P^T as pairs of 16 bits:
// pairs(c + r) has those of key r and queries c and c + 1. Both are 0 where a score does not count: selected, for slopes
// may be infinite or NaN there. Where scores are kept, S^T stays, and the pairs alone are made. numbers(c): lse of
// queries c and c + 1, in base 2. column_of(c): the place of the thread's query c.
template <class Element, class Variant, BackwardFeatures kFeatures, class Rows, class Column,
          class Numbers, class Pairs>
CUTE_DEVICE void variant_scores_to_P(Rows& S, backward::Tile<kFeatures> const& tile,
                                     Given<Variant> const& given, Place const& at,
                                     Column const& column_of, Numbers const& numbers,
                                     Pairs const& pairs) {
  static_assert(!kFeatures.dropout, "variants have no dropout");
  constexpr bool kSlopes = kHasSlopes<Variant, kFeatures>;
  constexpr bool kKeeps = kKeepsScores<Variant, kFeatures>;
  constexpr bool kPairs = kMakesPairs<Variant, kFeatures>;
  GradientScores<Variant, kFeatures> const scores(tile, given, at);
  CUTE_UNROLL
  for (int c = 0; c < size<1>(S); c += 2) {
    float2 const lse = numbers(c);
    typename Variant::Row const rows[2] = {scores.row(column_of(c)), scores.row(column_of(c + 1))};
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      float p[2];
      CUTE_UNROLL
      for (int i = 0; i < 2; ++i) {
        auto const [exponent, slope] =
            scores.exponent(r, column_of(c + i), rows[i], S(r, c + i), i == 0 ? lse.x : lse.y);
        p[i] = device::exp2(exponent);
        if constexpr (!kKeeps) {
          S(r, c + i) = kSlopes ? p[i] * slope : p[i];
        }
      }
      if constexpr (kPairs) {
        pairs(c + r) = device::pack2(p[0], p[1], Element{});
      }
    }
  }
  auto const hide = [&](int r, int c) {
    if constexpr (!kKeeps) {
      S(r, c) = 0.f;
    }
    if constexpr (kPairs) {
      pairs(c / 2 * 2 + r) &= c % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
    }
  };
  if (at.cuts_variant) {
    CUTE_UNROLL
    for (int c = 0; c < size<1>(S); ++c) {
      auto const row = scores.row(column_of(c));
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        if (!scores.counts(r, column_of(c), row)) {
          hide(r, c);
        }
      }
    }
  }
  if (at.cuts_band) {
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      Interval const shown = scores.shown(r);
      CUTE_UNROLL
      for (int c = 0; c < size<1>(S); ++c) {
        if (column_of(c) < shown.begin || column_of(c) >= shown.end) {
          hide(r, c);
        }
      }
    }
  }
}

// Adds a thread's values to the sums one after another: those of one place together.
class RunOfSums {
 public:
  CUTE_DEVICE void add(float* place, float value) {
    if (place != at_) {
      flush();
      at_ = place;
    }
    sum_ += value;
  }
  // Where the lanes of the warp have got to one place, they add together.
  CUTE_DEVICE void finish() {
    auto const bits = reinterpret_cast<uint64_t>(at_);
    uint32_t const words[] = {uint32_t(bits), uint32_t(bits >> 32)};
    uint32_t differ = 0;
    CUTE_UNROLL
    for (int step = 1; step < 32; step *= 2) {
      differ |= device::shfl_xor_bits(words[0], step) ^ words[0];
      differ |= device::shfl_xor_bits(words[1], step) ^ words[1];
    }
    if (device::any_lane(differ != 0)) {
      flush();
      return;
    }
    CUTE_UNROLL
    for (int step = 1; step < 32; step *= 2) {
      sum_ += device::shfl_xor(sum_, step);
    }
    if (device::thread_idx() % 32 == 0) {
      flush();
    }
  }

 private:
  CUTE_DEVICE void flush() {
    if (sum_ != 0.f) {
      device::reduce_add(at_, sum_);
    }
    sum_ = 0.f;
  }

  float* at_ = nullptr;
  float sum_ = 0.f;
};

// The sum over the lanes whose numbers differ in the bits from kFirst on, below kEnd.
template <int kFirst, int kEnd>
CUTE_DEVICE float sum_of_lanes(float value) {
  CUTE_UNROLL
  for (int step = kFirst; step < kEnd; step *= 2) {
    value += device::shfl_xor(value, step);
  }
  return value;
}

// Adds the gradients of load kSum. A lane has the keys lane / 4 and kKeyStep after it, and the queries lane % 4 * 2 and
// its neighbour of every eight.
// NOTE: pairs that do not count have G = 0: their derivatives may be infinite or NaN.
template <int kSum, class Variant, class Scores, class Kept, class Rows, class Column>
CUTE_DEVICE void add_gradients_of(Scores const& scores, Kept const& S, Rows const& G,
                                  Column const& column_of) {
  constexpr SummedOver kOver = Variant::summed_over(kSum);
  int const lane = device::thread_idx() % 32;
  float of_keys[2] = {0.f, 0.f};
  RunOfSums run;
  CUTE_UNROLL
  for (int c = 0; c < size<1>(G); ++c) {
    auto const row = scores.row(column_of(c));
    float of_query = 0.f;
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      float value = 0.f;
      if (G(r, c) != 0.f) {
        float raw = 0.f;
        if constexpr (Variant::kSumsReadScore) {
          raw = scores.capped(S(r, c)).score;
        }
        value = G(r, c) * scores.template derivative<kSum>(r, column_of(c), row, raw);
        if constexpr (kOver == SummedOver::runs) {
          run.add(scores.template place<kSum>(r, column_of(c), row), value);
        } else if constexpr (kOver == SummedOver::nothing) {
          device::reduce_add(scores.template place<kSum>(r, column_of(c), row), value);
        }
      }
      of_query += value;
      of_keys[r] += value;
    }
    if constexpr (kOver == SummedOver::keys) {
      float const sum = sum_of_lanes<4, 32>(of_query);
      if (lane < 4 && sum != 0.f) {
        device::reduce_add(scores.template place<kSum>(0, column_of(c), row), sum);
      }
    }
  }
  if constexpr (kOver == SummedOver::runs) {
    run.finish();
  } else if constexpr (kOver == SummedOver::queries) {
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      float const sum = sum_of_lanes<1, 4>(of_keys[r]);
      if (lane % 4 == 0 && sum != 0.f) {
        device::reduce_add(scores.template place<kSum>(r, 0, scores.row(0)), sum);
      }
    }
  } else if constexpr (kOver == SummedOver::block) {
    float const sum = sum_of_lanes<1, 32>(of_keys[0] + of_keys[1]);
    if (lane == 0 && sum != 0.f) {
      device::reduce_add(scores.template place<kSum>(0, 0, scores.row(0)), sum);
    }
  }
}
template <class Variant, int kSum = 0, class Scores, class Kept, class Rows, class Column>
CUTE_DEVICE void add_all_gradients(Scores const& scores, Kept const& S, Rows const& G,
                                   Column const& column_of) {
  if constexpr (kSum < Variant::kSums) {
    add_gradients_of<kSum, Variant>(scores, S, G, column_of);
    add_all_gradients<Variant, kSum + 1>(scores, S, G, column_of);
  }
}

// Adds the gradients of what is captured to their sums, given G^T = P^T (dP^T - delta), if `adds`. Where scores are kept, in S,
// G^T becomes dS^T.
template <class Variant, BackwardFeatures kFeatures, class Kept, class Rows, class Column>
CUTE_DEVICE void sum_captured(Kept const& S, Rows& G, backward::Tile<kFeatures> const& tile,
                              Given<Variant> const& given, Place const& at, Column const& column_of,
                              bool adds = true) {
  GradientScores<Variant, kFeatures> const scores(tile, given, at);
  device::at(device::Site::captured_r2g);
  if (adds) {
    add_all_gradients<Variant>(scores, S, G, column_of);
  }
  if constexpr (kHasSlopes<Variant, kFeatures>) {
    CUTE_UNROLL
    for (int c = 0; c < size<1>(G); ++c) {
      auto const row = scores.row(column_of(c));
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        auto const [raw, of_cap] = scores.capped(S(r, c));
        float const slope = scores.score_and_slope(r, column_of(c), row, raw).slope * of_cap;
        G(r, c) = G(r, c) != 0.f ? G(r, c) * slope : 0.f;
      }
    }
  }
}

}  // namespace pyflash::variant
