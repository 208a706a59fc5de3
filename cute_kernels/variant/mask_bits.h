// A mask as bits, one a pair, made before the kernel runs: of masks that are dear to evaluate, and the same for several heads or
// batches. They lie as the threads of kernels have scores that accumulate S by wgmma: a thread has two rows, 8 apart, and two of
// every eight columns. What is evaluated in passing is what a mask shows of a tile where bounds do not tell (block_lists.h).
#pragma once

#include <cstdint>

#include "cute_kernels/common/integers.h"
#include "cute_kernels/variant/block_lists.h"
#include "cute_kernels/variant/prepared_tables.h"

namespace pyflash::variant {

// Whether kernels look for bits.
template <class Variant>
inline constexpr bool kTakesBits = Variant::kHasMask && Variant::kMaskIsDear &&
                                   !(Variant::kMaskReadsBatch && Variant::kMaskReadsHead);

// Whether kernels that compute with warpgroups take a tile's blocks as spans (block_lists.h). NOTE: with bits they read ahead which
// block is next.
template <class Variant>
inline constexpr bool kTakesSpans = Variant::kHasMask && !kTakesBits<Variant>;

template <class Variant>
constexpr BlockSpans block_spans(ListedProblem const& problem) {
  return {.data = nullptr, .warpgroups = kTakesSpans<Variant> ? problem.warpgroups : 0};
}

// Keys whose bits a lane of each quad has a byte of, and those that it has a word of.
inline constexpr int kKeysOfByte = 32;
inline constexpr int kKeysOfWord = 128;
inline constexpr int kRowsOfWarpgroup = 64;

// Bit c % 32 of word c / 32 of a row is the thread's column c.
PYFLASH_HOST_DEVICE constexpr int words_of_row(int B_c) { return ceil_div(B_c, kKeysOfWord); }
// A thread's words are those of its first row, then those of its second.
PYFLASH_HOST_DEVICE constexpr int words_of_thread(int B_c) { return 2 * words_of_row(B_c); }
PYFLASH_HOST_DEVICE constexpr int64_t words_of_block(int warpgroups, int B_c) {
  return int64_t(warpgroups) * 2 * kRowsOfWarpgroup * words_of_thread(B_c);
}

// The words of a problem; 0: bits would serve too few tiles, or take too much memory.
template <class Variant>
constexpr int64_t bits_size(ListedProblem const& problem) {
  constexpr int64_t kMostBytes = int64_t(64) << 20;
  constexpr int64_t kLeastServed = 2;
  if (!kTakesBits<Variant> || problem.warpgroups == 0) {
    return 0;
  }
  BlockLists const lists = problem.lists<Variant>();
  int64_t const made_for = int64_t(lists.batches) * lists.heads;
  int64_t const used_for = int64_t(problem.batch) * (problem.heads / problem.group);
  int64_t const words =
      lists.n_lists() * lists.blocks * words_of_block(problem.warpgroups, problem.B_c);
  bool const is_small = words * int64_t(sizeof(uint32_t)) <= kMostBytes;
  return is_small && used_for >= kLeastServed * made_for ? words : 0;
}

// The key of 32 whose bit is at a place of a word: eight neighbouring bits are of one lane of a quad.
PYFLASH_HOST_DEVICE constexpr int key_of_bit(int bit) {
  return bit % 8 / 2 * 8 + bit / 8 * 2 + bit % 2;
}

// A block of keys of a tile.
struct BlockOfTile {
  TileOfLists at;
  int block;
  int first_query;
  int end_query;  // of the tile's that exist
  Lengths lengths;
};

// What is seen of pairs that exist.
struct SeenPairs {
  bool shown = false;   // some are
  bool hidden = false;  // some are
};

// A warp on the host.
struct HostWarp {
  static constexpr int kOwnLanes = 32;  // that this thread stands for

  static constexpr int own(int lane) { return lane; }
  template <class Visit>
  static void for_each_own_lane(Visit const& visit) {
    for (int lane = 0; lane < kOwnLanes; ++lane) {
      visit(lane);
    }
  }
  template <int kVotes, class Shows>
  static void vote(uint32_t (&votes)[kVotes], Shows const& shows) {
    for (int i = 0; i < kVotes; ++i) {
      votes[i] = 0;
      for (int lane = 0; lane < 32; ++lane) {
        votes[i] |= uint32_t(shows(i, lane)) << lane;
      }
    }
  }
  // Calls visit with each lane of a quad, and the word of its bytes of four votes.
  template <class Visit>
  static void for_each_of_quad(uint32_t const (&votes)[4], Visit const& visit) {
    for (int lane = 0; lane < 4; ++lane) {
      uint32_t word = 0;
      for (int i = 0; i < 4; ++i) {
        word |= (votes[i] >> (8 * lane) & 255) << (8 * i);
      }
      visit(lane, word);
    }
  }
};

// All threads that judge a block, on the host.
struct HostCta {
  using Warp = HostWarp;
  static constexpr int kWarps = 1;

  // What one of them judges.
  template <class Judge>
  static Shown agreed(Judge const& judge) {
    return judge();
  }
  // Rows are shared among warps, which visit kAtOnce: `first`, and those that are `step` further on.
  template <int kAtOnce, class Visit>
  static void for_each_rows(int rows, Visit const& visit) {
    for (int first = 0; first < rows; first += kAtOnce) {
      visit(first, 1);
    }
  }
  static SeenPairs of_all(SeenPairs const& seen) { return seen; }
  static bool is_first() { return true; }
};

// Writes the bits of a block, which begin at `words`; returns what this thread sees. kStreamed: is_streamed of its keys.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class Variant, bool kStreamed, class Cta>
PYFLASH_HOST_DEVICE SeenPairs write_bits(typename Variant::Params const& captured,
                                         PreparedTables<Variant::kPrepared> const& tables,
                                         ListedProblem const& problem, BlockOfTile const& of,
                                         uint32_t* words, Cta const& cta) {
  using Warp = typename Cta::Warp;
  constexpr int kVotes = kKeysOfWord / kKeysOfByte;
  int const batch = of.at.batch;
  int const group = problem.group;
  int const queries_of_warpgroup = kRowsOfWarpgroup / group;
  int const words_per_row = words_of_row(problem.B_c);
  int const first_key = of.block * problem.B_c;
  SeenPairs seen;
  for (int word = 0; word < words_per_row; ++word) {
    // NOTE: keys behind the block stand for its last.
    auto column_of = [&](int vote, int lane) {
      return smaller(word * kKeysOfWord + vote * kKeysOfByte + key_of_bit(lane), problem.B_c - 1);
    };
    // NOTE: entries of columns are read in pairs, from an even one on.
    auto first_of = [&](int column) { return first_key + (column & ~1); };
    int head = of.at.head * group;
    auto prepared = Variant::prepared(tables, batch, head);
    auto uniform = Variant::uniform(captured, of.lengths, batch, head);
    typename Variant::Column columns[kVotes][Warp::kOwnLanes];  // once for all rows of a head
    auto compute_columns = [&] {
      Warp::for_each_own_lane([&](int lane) {
        for (int i = 0; i < kVotes; ++i) {
          int const column = column_of(i, lane);
          columns[i][Warp::own(lane)] = Variant::column(captured, of.lengths, prepared, uniform,
                                                        batch, head, first_of(column), column & 1);
        }
      });
    };
    compute_columns();
    uint32_t keys[kVotes];  // those that exist
    Warp::vote(keys,
               [&](int i, int lane) { return first_key + column_of(i, lane) < of.lengths.k_len; });
    // NOTE: of several rows at once, so that loads of one do not wait for those of another.
    constexpr int kAtOnce = Variant::kMaskReadsHead ? 1 : 4;
    static_assert(kRowsOfWarpgroup % (kAtOnce * Cta::kWarps) == 0);
    int const rows = problem.warpgroups * kRowsOfWarpgroup;
    cta.template for_each_rows<kAtOnce>(rows, [&](int first_row, int step) {
      int queries[kAtOnce];
      bool exists[kAtOnce];
      typename Variant::Row of_rows[kAtOnce];
      for (int n = 0; n < kAtOnce; ++n) {
        int const row = first_row + n * step;
        int const in_warpgroup = row % kRowsOfWarpgroup;
        int const of_warpgroup = group == 1 ? in_warpgroup : in_warpgroup / group;
        int const query =
            of.first_query + row / kRowsOfWarpgroup * queries_of_warpgroup + of_warpgroup;
        if (Variant::kMaskReadsHead && group > 1) {
          head = of.at.head * group + in_warpgroup - of_warpgroup * group;
          prepared = Variant::prepared(tables, batch, head);
          uniform = Variant::uniform(captured, of.lengths, batch, head);
          compute_columns();
        }
        exists[n] = of_warpgroup < queries_of_warpgroup && query < of.end_query;
        queries[n] = smaller(query, of.end_query - 1);
        of_rows[n] = Variant::row(captured, of.lengths, prepared, uniform, batch, head, queries[n]);
      }
      uint32_t votes[kAtOnce * kVotes];
      Warp::vote(votes, [&](int i, int lane) {
        int const column = column_of(i % kVotes, lane);
        int const first = first_of(column);
        int const offset = column & 1;
        int const query = queries[i / kVotes];
        auto const distance = Variant::distance(captured, of.lengths, prepared, uniform, batch,
                                                head, first - query, offset);
        return Variant::template counts<kStreamed>(
            captured, of.lengths, uniform, of_rows[i / kVotes],
            columns[i % kVotes][Warp::own(lane)], distance, batch, head, query, first, offset);
      });
      for (int n = 0; n < kAtOnce; ++n) {
        uint32_t of_row[kVotes];
        for (int i = 0; i < kVotes; ++i) {
          uint32_t const vote = votes[n * kVotes + i];
          of_row[i] = exists[n] ? vote : 0;
          seen.shown = seen.shown || (of_row[i] & keys[i]) != 0;
          seen.hidden = seen.hidden || (exists[n] && (~vote & keys[i]) != 0);
        }
        int const row = first_row + n * step;
        Warp::for_each_of_quad(of_row, [&](int lane, uint32_t bits) {
          int const thread = row / 16 * 32 + row % 8 * 4 + lane;
          int const half = row % 16 / 8;
          words[(thread * 2 + half) * words_per_row + word] = bits;
        });
      }
    });
  }
  return seen;
}

// Judges block `index` of those of all lists: writes what is shown of it into its place of the list, and its bits, which begin with
// those of block 0 at `data`, where some is.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class Variant, class Cta, class Loader>
PYFLASH_HOST_DEVICE void judge_block(typename Variant::Params const& captured,
                                     PreparedTables<Variant::kPrepared> const& tables,
                                     ListedProblem const& problem, BlockLists const& lists,
                                     uint32_t* data, int64_t index, Cta const& cta,
                                     Loader const& load) {
  TileOfLists const at = lists.tile_of(index / lists.blocks);
  int const block = int(index % lists.blocks);
  Rows const q_rows = problem.q.rows_of(at.batch, load);
  Rows const k_rows = problem.k.rows_of(at.batch, load);
  int const first = at.tile * problem.n_queries;
  int const end = smaller(first + problem.n_queries, q_rows.length);
  Interval const listed = listed_blocks(problem, lists, q_rows, k_rows, first, end);
  if (block < listed.begin || block >= listed.end) {
    return;
  }
  Lengths const lengths{q_rows.length, k_rows.length, 0, 0};
  Shown shown = cta.agreed([&] {
    return shown_of_block<Variant>(captured, problem, lengths, at.batch, at.head * problem.group,
                                   {first, end - 1}, block);
  });
  if (shown == Shown::some) {
    BlockOfTile const of{at, block, first, end, lengths};
    uint32_t* const words = data + index * words_of_block(problem.warpgroups, problem.B_c);
    SeenPairs seen;
    if (Variant::kStreams && Variant::is_streamed(captured, block * problem.B_c, problem.B_c)) {
      seen = write_bits<Variant, Variant::kStreams>(captured, tables, problem, of, words, cta);
    } else {
      seen = write_bits<Variant, false>(captured, tables, problem, of, words, cta);
    }
    seen = cta.of_all(seen);
    shown = !seen.shown ? Shown::none : seen.hidden ? Shown::some : Shown::all;
  }
  if (cta.is_first()) {
    lists.list(at.batch, at.head, at.tile)[1 + block] = int(shown);
  }
}

}  // namespace pyflash::variant
