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
  constexpr int64_t kMostBytes = int64_t(768) << 20;  // of 64k queries and keys
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

// What is seen of the pairs of a block.
inline constexpr uint32_t kShowsSome = 1;
inline constexpr uint32_t kHidesSome = 2;

// A block of a tile, and what is known of it.
struct JudgedBlock {
  BlockOfTile of;
  Shown shown;    // by bounds
  uint32_t seen;  // kShowsSome, kHidesSome
  bool has_vectors;
};
// Blocks that a CTA judges, at most.
inline constexpr int kMostJudged = 32;

// 16 neighbours of a tensor of bools.
struct alignas(16) BoolVector {
  uint32_t words[4];
};
inline constexpr int kKeysOfVector = 16;

// Loads one, and brings what lies beside it to L2, which is loaded next.
PYFLASH_HOST_DEVICE BoolVector load_vector(bool const* bools) {
#if defined(__CUDA_ARCH__)
  BoolVector loaded;
  asm("ld.global.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
      : "=r"(loaded.words[0]), "=r"(loaded.words[1]), "=r"(loaded.words[2]), "=r"(loaded.words[3])
      : "l"(bools));
  return loaded;
#else
  return *reinterpret_cast<BoolVector const*>(bools);
#endif
}

// Bits of a lane of a quad that a vector has.
inline constexpr int kBitsOfVector = 4;

// The bits of a vector, a byte for each lane of a quad, which has two of every eight keys.
PYFLASH_HOST_DEVICE uint32_t bits_by_lanes(BoolVector const& bools) {
  auto pairs_of = [](uint32_t eight_before, uint32_t eight_after) {
    uint32_t const both = eight_before | eight_after << 2;
    return both | both >> 7;  // the second of a pair is a byte further
  };
  uint32_t const first = pairs_of(bools.words[0], bools.words[2]);
  uint32_t const second = pairs_of(bools.words[1], bools.words[3]);
#if defined(__CUDA_ARCH__)
  return __byte_perm(first, second, 0x6420) & 0x0f0f0f0f;
#else
  return (first & 15) | (first >> 16 & 15) << 8 | (second & 15) << 16 | (second >> 16 & 15) << 24;
#endif
}
inline constexpr uint32_t kAllBitsByLanes = 0x0f0f0f0f;

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
  // Eight lanes of a warp have bits_by_lanes of eight vectors of a row; there are four such rows, by each of two loads. Calls visit
  // with each lane, 0 or 1 for a load, and the word of the row of this load that two of eight lanes have for a lane of a quad: even
  // lanes the word of the first load, odd ones that of the second.
  template <class Visit>
  static void for_each_of_rows(uint32_t const (&first)[kOwnLanes],
                               uint32_t const (&second)[kOwnLanes], Visit const& visit) {
    for (int lane = 0; lane < kOwnLanes; ++lane) {
      uint32_t const(&by_lanes)[kOwnLanes] = lane % 2 == 0 ? first : second;
      uint32_t word = 0;
      for (int i = 0; i < 8; ++i) {
        uint32_t const of_vector = by_lanes[lane / 8 * 8 + i];
        word |= (of_vector >> (lane % 8 / 2 * 8) & 15) << (kBitsOfVector * i);
      }
      visit(lane, lane % 2, word);
    }
  }
};

// All threads that judge blocks, on the host.
struct HostCta {
  using Warp = HostWarp;
  static constexpr int kWarps = 1;

  JudgedBlock* judged;  // (kMostJudged)

  // A thread each.
  template <class Visit>
  static void for_each(int count, Visit const& visit) {
    for (int i = 0; i < count; ++i) {
      visit(i);
    }
  }
  static void sync() {}
  // Warps share the numbers below `count`.
  template <class Visit>
  static void for_each_of(int count, Visit const& visit) {
    for_each(count, visit);
  }
  // Adds what a thread sees of a block.
  static void add(uint32_t& seen, uint32_t of_thread) { seen |= of_thread; }
};

// Rows of a tile that are neighbours in a warpgroup, one after the other.
struct RowWalk {
  int first_query;  // of the warpgroup
  int end_query;
  int group;
  int query_of_group;
  int head_of_group;

  // row: of all warpgroups.
  PYFLASH_HOST_DEVICE RowWalk(ListedProblem const& problem, BlockOfTile const& of, int row)
      : end_query(of.end_query), group(problem.group) {
    int const in_warpgroup = row % kRowsOfWarpgroup;
    int const queries = group == 1 ? kRowsOfWarpgroup : kRowsOfWarpgroup / group;
    first_query = of.first_query + row / kRowsOfWarpgroup * queries;
    query_of_group = group == 1 ? in_warpgroup : in_warpgroup / group;
    head_of_group = in_warpgroup - query_of_group * group;
  }

  // NOTE: rows behind the last query stand for it: nobody reads their bits.
  PYFLASH_HOST_DEVICE int query() const {
    return smaller(first_query + query_of_group, end_query - 1);
  }
  PYFLASH_HOST_DEVICE void advance() {
    ++head_of_group;
    bool const is_last = head_of_group == group;
    query_of_group += is_last ? 1 : 0;
    head_of_group = is_last ? 0 : head_of_group;
  }
};

// The word of a row of a tile that lane 0 of a quad has, of words_of_row. The row below it has its own kWordsOfNextRow *
// words_of_row further on, up to the eighth, and the next lane of the quad kWordsOfNextLane * words_of_row.
inline constexpr int kWordsOfNextLane = 2;
inline constexpr int kWordsOfNextRow = 4 * kWordsOfNextLane;
PYFLASH_HOST_DEVICE constexpr int word_of_row(int row, int words_per_row) {
  int const thread = row / 16 * 32 + row % 8 * 4;
  int const half = row % 16 / 8;
  return (thread * kWordsOfNextLane + half) * words_per_row;
}

// Writes the bits of a block, which begin at `words`; returns what this thread sees. kStreamed: is_streamed of its keys.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class Variant, bool kStreamed, class Cta>
PYFLASH_HOST_DEVICE uint32_t write_bits(typename Variant::Params const& captured,
                                        PreparedTables<Variant::kPrepared> const& tables,
                                        ListedProblem const& problem, BlockOfTile const& of,
                                        uint32_t* words, Cta const& cta) {
  using Warp = typename Cta::Warp;
  constexpr int kVotes = kKeysOfWord / kKeysOfByte;
  int const batch = of.at.batch;
  int const words_per_row = words_of_row(problem.B_c);
  int const first_key = of.block * problem.B_c;
  // NOTE: keys behind the last of the block stand for it: nobody reads their bits.
  int const last_column = smaller(problem.B_c, of.lengths.k_len - first_key) - 1;
  uint32_t some = 0;
  uint32_t every = ~0u;
  for (int word = 0; word < words_per_row; ++word) {
    auto column_of = [&](int vote, int lane) {
      return smaller(word * kKeysOfWord + vote * kKeysOfByte + key_of_bit(lane), last_column);
    };
    // NOTE: entries of columns are read in pairs, from an even one on.
    auto first_of = [&](int column) { return first_key + (column & ~1); };
    int head = of.at.head * problem.group;
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
    // NOTE: of several rows at once, so that loads of one do not wait for those of another.
    constexpr int kAtOnce = Variant::kMaskReadsHead ? 1 : 4;
    static_assert(kRowsOfWarpgroup % (kAtOnce * Cta::kWarps) == 0);
    int const rows = problem.warpgroups * kRowsOfWarpgroup;
    cta.for_each_of(rows / kAtOnce, [&](int n_rows) {
      int const first_row = n_rows * kAtOnce;
      int queries[kAtOnce];
      typename Variant::Row of_rows[kAtOnce];
      RowWalk row(problem, of, first_row);
      for (int n = 0; n < kAtOnce; ++n) {
        if (Variant::kMaskReadsHead && problem.group > 1) {
          head = of.at.head * problem.group + row.head_of_group;
          prepared = Variant::prepared(tables, batch, head);
          uniform = Variant::uniform(captured, of.lengths, batch, head);
          compute_columns();
        }
        queries[n] = row.query();
        of_rows[n] = Variant::row(captured, of.lengths, prepared, uniform, batch, head, queries[n]);
        row.advance();
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
          of_row[i] = votes[n * kVotes + i];
          some |= of_row[i];
          every &= of_row[i];
        }
        int const first_word = word_of_row(first_row, words_per_row) + word;
        Warp::for_each_of_quad(of_row, [&](int lane, uint32_t bits) {
          words[first_word + (n * kWordsOfNextRow + lane * kWordsOfNextLane) * words_per_row] =
              bits;
        });
      }
    });
  }
  return (some != 0 ? kShowsSome : 0) | (every != ~0u ? kHidesSome : 0);
}

// Whether a mask is a tensor of bools, of which keys are neighbours.
template <class Variant>
inline constexpr bool kIsBools = Variant::kBoolsOfMask >= 0;

// Whether the bools of a block are vectors, of keys that exist.
template <class Variant>
PYFLASH_HOST_DEVICE bool has_bool_vectors(typename Variant::Params const& captured,
                                          ListedProblem const& problem, BlockOfTile const& of) {
  int const end = (of.block + 1) * problem.B_c;
  return problem.group == 1 && end <= of.lengths.k_len &&
         end <= Variant::template copied_until<Variant::kBoolsOfMask>(captured);
}

// The rows of a tile that a warp visits at once.
inline constexpr int kRowsOfVisit = 16;
// Rows of a load: r, r + 1, r + 8 and r + 9, whose words are neighbours.
inline constexpr int kRowsOfLoad = 4;
inline constexpr int kLoadsOfVisit = kRowsOfVisit / kRowsOfLoad;
inline constexpr int kLanesOfRow = kKeysOfWord / kKeysOfVector;

// The first of the rows of visit n of which a lane loads a vector.
PYFLASH_HOST_DEVICE constexpr int first_row_of(int n, int lane) {
  int const row = lane / kLanesOfRow;
  return n * kRowsOfVisit + row % 2 + row / 2 * 8;
}

// Where the bools of the rows of visit n begin. A lane has a vector of each, eight lanes a word of each lane of a quad.
template <class Variant, class Warp>
struct LinesOfVisit {
  bool const* of_loads[kLoadsOfVisit][Warp::kOwnLanes];

  PYFLASH_HOST_DEVICE void find(typename Variant::Params const& captured,
                                PreparedTables<Variant::kPrepared> const& tables,
                                BlockOfTile const& of, int n) {
    int const head = of.at.head;
    auto const prepared = Variant::prepared(tables, of.at.batch, head);
    auto const uniform = Variant::uniform(captured, of.lengths, of.at.batch, head);
    Warp::for_each_own_lane([&](int lane) {
      int const first_query = of.first_query + first_row_of(n, lane);
      for (int load = 0; load < kLoadsOfVisit; ++load) {
        int const query = smaller(first_query + 2 * load, of.end_query - 1);
        auto const row =
            Variant::row(captured, of.lengths, prepared, uniform, of.at.batch, head, query);
        of_loads[load][Warp::own(lane)] = Variant::template line<Variant::kBoolsOfMask>(row);
      }
    });
  }
};

// The same as write_bits of such a block, of the rows of visit n.
template <class Variant, class Warp>
PYFLASH_HOST_DEVICE uint32_t write_bools(LinesOfVisit<Variant, Warp> const& lines,
                                         ListedProblem const& problem, BlockOfTile const& of, int n,
                                         uint32_t* words) {
  int const words_per_row = words_of_row(problem.B_c);
  int const first_key = of.block * problem.B_c;
  uint32_t some = 0;
  uint32_t every = kAllBitsByLanes;
  for (int word = 0; word < words_per_row; ++word) {
    uint32_t by_lanes[kLoadsOfVisit][Warp::kOwnLanes];
    Warp::for_each_own_lane([&](int lane) {
      // NOTE: a vector behind the last of the block stands for it: nobody reads its bits.
      int const column = smaller(word * kKeysOfWord + lane % kLanesOfRow * kKeysOfVector,
                                 problem.B_c - kKeysOfVector);
      BoolVector bools[kLoadsOfVisit];
      for (int load = 0; load < kLoadsOfVisit; ++load) {
        bool const* const line = lines.of_loads[load][Warp::own(lane)];
        bools[load] = load_vector(line + first_key + column);
      }
      for (int load = 0; load < kLoadsOfVisit; ++load) {
        uint32_t const bits = bits_by_lanes(bools[load]);
        by_lanes[load][Warp::own(lane)] = bits;
        some |= bits;
        every &= bits;
      }
    });
    for (int load = 0; load < kLoadsOfVisit; load += 2) {
      auto write = [&](int lane, int next, uint32_t bits) {
        int const of_quad = lane % kLanesOfRow / 2;
        int const first_word = word_of_row(first_row_of(n, lane), words_per_row) + word;
        words[first_word + (2 * (load + next) * kWordsOfNextRow + of_quad * kWordsOfNextLane) *
                               words_per_row] = bits;
      };
      Warp::for_each_of_rows(by_lanes[load], by_lanes[load + 1], write);
    }
  }
  return (some != 0 ? kShowsSome : 0) | (every != kAllBitsByLanes ? kHidesSome : 0);
}

// Writes the bits of those of `count` judged blocks that have vectors of bools; words_of: where the bits of one begin. A warp walks along
// the keys of its rows, so that it finds their lines once, and reads what lies side by side.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class Variant, class Cta, class WordsOf>
PYFLASH_HOST_DEVICE void write_bool_vectors(typename Variant::Params const& captured,
                                            PreparedTables<Variant::kPrepared> const& tables,
                                            ListedProblem const& problem, int count, Cta const& cta,
                                            WordsOf const& words_of) {
  constexpr int kShares = 2;  // of the blocks: visits alone may be no multiple of the warps
  int const n_visits = problem.warpgroups * kRowsOfWarpgroup / kRowsOfVisit;
  cta.for_each_of(n_visits * kShares, [&](int place) {
    int const n = place / kShares;
    int const share = place % kShares;
    LinesOfVisit<Variant, typename Cta::Warp> lines;
    bool are_found = false;
    for (int i = count * share / kShares; i < count * (share + 1) / kShares; ++i) {
      JudgedBlock& judged = cta.judged[i];
      BlockOfTile const& of = judged.of;
      are_found = are_found && of.block > 0;  // of the tile before
      if (judged.shown != Shown::some || !judged.has_vectors) {
        continue;
      }
      if (!are_found) {
        lines.find(captured, tables, of, n);
        are_found = true;
      }
      cta.add(judged.seen, write_bools(lines, problem, of, n, words_of(i)));
    }
  });
}

// Judges `count` blocks from number `first` of those of all lists on: writes what is shown of each into its place of the list, and
// its bits, which begin with those of block 0 at `data`, where some is.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class Variant, class Cta, class Loader>
PYFLASH_HOST_DEVICE void judge_blocks_from(typename Variant::Params const& captured,
                                           PreparedTables<Variant::kPrepared> const& tables,
                                           ListedProblem const& problem, BlockLists const& lists,
                                           uint32_t* data, int first, int count, Cta const& cta,
                                           Loader const& load) {
  cta.for_each(count, [&](int i) {
    int const list = (first + i) / lists.blocks;
    TileOfLists const at = lists.tile_of(list);
    int const block = first + i - list * lists.blocks;
    Rows const q_rows = problem.q.rows_of(at.batch, load);
    Rows const k_rows = problem.k_rows(at.batch, load);
    int const first_query = at.tile * problem.n_queries;
    int const end_query = smaller(first_query + problem.n_queries, q_rows.length);
    Interval const listed = listed_blocks(problem, lists, q_rows, k_rows, first_query, end_query);
    Lengths const lengths{q_rows.length, k_rows.length, 0, 0};
    Shown shown = Shown::none;
    if (listed.begin <= block && block < listed.end) {
      int const head = at.head * problem.group;
      Bounds const queries{first_query, end_query - 1};
      Bounds const keys = keys_of_block(problem, lengths, block);
      shown =
          shown_of_block<Variant>(captured, problem, lengths,
                                  Variant::tile_rows(captured, lengths, at.batch, head, queries),
                                  Variant::tile_columns(captured, lengths, at.batch, head, keys),
                                  at.batch, head, queries, keys);
    }
    BlockOfTile const of{at, block, first_query, end_query, lengths};
    bool has_vectors = false;
    if constexpr (kIsBools<Variant>) {
      has_vectors = has_bool_vectors<Variant>(captured, problem, of);
    }
    cta.judged[i] = {of, shown, 0, has_vectors};
  });
  cta.sync();  // they are visible
  auto words_of = [&](int i) {
    return data + int64_t(first + i) * words_of_block(problem.warpgroups, problem.B_c);
  };
  if constexpr (kIsBools<Variant>) {
    write_bool_vectors<Variant>(captured, tables, problem, count, cta, words_of);
  }
  for (int i = 0; i < count; ++i) {
    if (cta.judged[i].shown == Shown::some && !cta.judged[i].has_vectors) {
      BlockOfTile const of = cta.judged[i].of;
      bool const is_streamed =
          Variant::kStreams && Variant::is_streamed(captured, of.block * problem.B_c, problem.B_c);
      uint32_t const seen =
          is_streamed ? write_bits<Variant, Variant::kStreams>(captured, tables, problem, of,
                                                               words_of(i), cta)
                      : write_bits<Variant, false>(captured, tables, problem, of, words_of(i), cta);
      cta.add(cta.judged[i].seen, seen);
    }
  }
  cta.sync();  // what all threads have seen is visible
  cta.for_each(count, [&](int i) {
    auto const& [of, shown, seen, has_vectors] = cta.judged[i];
    Shown found = shown;
    if (shown == Shown::some) {
      found = (seen & kShowsSome) == 0   ? Shown::none
              : (seen & kHidesSome) == 0 ? Shown::all
                                         : Shown::some;
    }
    lists.list(of.at.batch, of.at.head, of.at.tile)[1 + of.block] = int(found);
  });
}

}  // namespace pyflash::variant
