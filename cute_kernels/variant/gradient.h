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
    BackwardParamsWithoutDropout const& problem = tile.problem;
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

// S^T to P^T times the slope of the score function, in place, and to P^T: pair(i, p0, p1) gets those of queries c and c + 1, where
// i = c + r for key r. Both are 0 where a score does not count: selected, for slopes may be infinite or NaN there. numbers(c): lse of
// queries c and c + 1, in base 2. column_of(c): the place of the thread's query c.
template <class Variant, BackwardFeatures kFeatures, class Rows, class Column, class Numbers,
          class Pair>
CUTE_DEVICE void variant_scores_to_P(Rows& S, backward::Tile<kFeatures> const& tile,
                                     Given<Variant> const& given, Place const& at,
                                     Column const& column_of, Numbers const& numbers,
                                     Pair const& pair) {
  static_assert(!kFeatures.dropout, "what is dropped is marked by the sign, which a slope changes");
  constexpr int kKeyStep = 8;
  BackwardParamsWithoutDropout const& problem = tile.problem;
  auto const& captured = given.captured;
  Lengths const lengths{tile.queries().length, tile.keys().length, 0, 0};
  int const batch = tile.sequence();
  auto const prepared = Variant::prepared(given.made.prepared, batch, at.head);
  auto const uniform = Variant::uniform(captured, lengths, batch, at.head);
  bool const is_capped = kFeatures.softcap && problem.softcap.cap != 0.f;
  float const scale = is_capped ? kLn2 : problem.softmax_scale;
  typename Variant::Column columns[2];
  Interval shown[2];
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) {
    columns[r] = Variant::column(captured, lengths, prepared, uniform, batch, at.head, at.first_key,
                                 kKeyStep * r);
    int const key = at.first_key + kKeyStep * r;
    auto const queries = tile.queries_from(key);
    // NOTE: keys past the end score 0, which may be far above lse.
    int const end = key < tile.keys().length ? queries.end(0) : 0;
    shown[r] = {queries.begin(0) - at.first_query, end - at.first_query};
  }
  auto make = [&](auto cut) {
    CUTE_UNROLL
    for (int c = 0; c < size<1>(S); c += 2) {
      float2 const lse = numbers(c);
      typename Variant::Row rows[2];
      CUTE_UNROLL
      for (int i = 0; i < 2; ++i) {
        rows[i] = Variant::row(captured, lengths, prepared, uniform, batch, at.head,
                               at.first_query + column_of(c + i));
      }
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        float p[2];
        CUTE_UNROLL
        for (int i = 0; i < 2; ++i) {
          int const query = column_of(c + i);
          auto const distance =
              Variant::distance(captured, lengths, prepared, uniform, batch, at.head,
                                at.first_key - at.first_query, kKeyStep * r - query);
          float raw = S(r, c + i);
          float of_cap = 1.f;
          if (is_capped) {
            float const capped = pyflash::tanh(problem.softcap.inner * raw);
            of_cap = (1.f - capped) * (1.f + capped);
            raw = problem.softcap.outer * capped;
          }
          ScoreAndSlope const made = Variant::template score_and_slope<false>(
              captured, lengths, uniform, rows[i], columns[r], distance, batch, at.head,
              at.first_query + query, at.first_key, kKeyStep * r, raw, scale);
          p[i] = device::exp2(fmaf(made.score, kLog2e, i == 0 ? -lse.x : -lse.y));
          S(r, c + i) = p[i];
          if (Variant::kHasSlope || kFeatures.softcap) {
            S(r, c + i) *= made.slope * of_cap;
          }
          if constexpr (cut.value) {
            bool const counts = Variant::template counts<false>(
                captured, lengths, uniform, rows[i], columns[r], distance, batch, at.head,
                at.first_query + query, at.first_key, kKeyStep * r);
            if (query < shown[r].begin || query >= shown[r].end || !counts) {
              p[i] = S(r, c + i) = 0.f;
            }
          }
        }
        pair(c + r, p[0], p[1]);
      }
    }
  };
  if (at.cuts_variant || at.cuts_band) {
    make(std::true_type{});
  } else {
    make(std::false_type{});
  }
}

}  // namespace pyflash::variant
