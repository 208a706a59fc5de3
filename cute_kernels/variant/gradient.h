// A variant in kernels of gradients: the blocks of queries that a tile of keys walks through, and scores of a block to P, with
// keys as rows.
#pragma once

#include <type_traits>

#include <cute/tensor_impl.hpp>

#include "cute_kernels/common/backward_tile.h"
#include "cute_kernels/device.h"
#include "cute_kernels/row_softmax.h"
#include "cute_kernels/softcap.h"
#include "cute_kernels/variant/kernel_params.h"

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
    float of_cap = 1.f;
    if (is_capped) {
      float const capped = pyflash::tanh(tile.problem.softcap.inner * raw);
      of_cap = (1.f - capped) * (1.f + capped);
      raw = tile.problem.softcap.outer * capped;
    }
    ScoreAndSlope const made = Variant::template score_and_slope<false>(
        captured, lengths, uniform, row, columns[r], distance(r, offset), batch, at.head,
        at.first_query + offset, at.first_key, kKeyStep * r, raw, scale);
    return {fmaf(made.score, kLog2e, -lse), made.slope * of_cap};
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

// S^T to P^T, in place, or where scores have slopes to P^T times the slope, and to P^T as pairs of 16 bits: pairs(c + r) has those
// of key r and queries c and c + 1. Both are 0 where a score does not count: selected, for slopes may be infinite or NaN
// there. numbers(c): lse of queries c and c + 1, in base 2. column_of(c): the place of the thread's query c.
template <class Element, class Variant, BackwardFeatures kFeatures, class Rows, class Column,
          class Numbers, class Pairs>
CUTE_DEVICE void variant_scores_to_P(Rows& S, backward::Tile<kFeatures> const& tile,
                                     Given<Variant> const& given, Place const& at,
                                     Column const& column_of, Numbers const& numbers,
                                     Pairs const& pairs) {
  static_assert(!kFeatures.dropout, "what is dropped is marked by the sign, which a slope changes");
  constexpr bool kSlopes = kHasSlopes<Variant, kFeatures>;
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
        S(r, c + i) = kSlopes ? p[i] * slope : p[i];
      }
      if constexpr (kSlopes) {
        pairs(c + r) = device::pack2(p[0], p[1], Element{});
      }
    }
  }
  auto const hide = [&](int r, int c) {
    S(r, c) = 0.f;
    if constexpr (kSlopes) {
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

}  // namespace pyflash::variant
