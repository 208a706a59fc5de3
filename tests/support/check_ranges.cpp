// Compares the ranges of cute_kernels/common/ with the definition, pair by pair. Prints the number of cases, or the first that
// differs.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cute_kernels/common/mask.h"
#include "cute_kernels/common/sequence.h"

using namespace pyflash;

namespace {

struct Case {
  int n_queries, n_keys, window_left, window_right, chunk;
};

bool attends(Case const& c, int query, int key) {
  int const aligned = query + c.n_keys - c.n_queries;
  bool const in_left = c.window_left == kNoWindow || key >= aligned - c.window_left;
  bool const in_right = c.window_right == kNoWindow || key <= aligned + c.window_right;
  auto const chunk_of = [&](int k) { return k >= 0 ? k / c.chunk : -1 - (-1 - k) / c.chunk; };
  bool const in_chunk = c.chunk == 0 || chunk_of(aligned) == chunk_of(key);
  return in_left && in_right && in_chunk && key >= 0 && key < c.n_keys;
}

void require(bool same, Case const& c, char const* what, int row, int column) {
  if (!same) {
    std::printf("%s: %d queries, %d keys, windows %d and %d, chunk %d, row %d, column %d\n", what,
                c.n_queries, c.n_keys, c.window_left, c.window_right, c.chunk, row, column);
    std::exit(1);
  }
}

bool holds(Interval const& interval, int i) { return i >= interval.begin && i < interval.end; }

// The band's columns of each row, of some neighbouring rows, of all of them, and their blocks. attended: of a row and a column.
template <class Band, class Attended>
void check(Case const& c, Band const& band, int first, int n_rows, int n_columns,
           Attended const& attended) {
  for (int column = 0; column < n_columns; ++column) {
    bool some = false, all = true;
    for (int r = 0; r < n_rows; ++r) {
      bool const expected = attended(first + r, column);
      some = some || expected;
      all = all && expected;
      require(holds({band.begin(r), band.end(r)}, column) == expected, c, "a row", first + r,
              column);
    }
    require(!some || holds(band.of_some(n_rows), column), c, "some rows", first, column);
    require(holds(band.of_all(n_rows), column) == all, c, "all rows", first, column);
    for (int block : {1, 3, 4}) {
      Interval const touched = band.of_some(n_rows).blocks_touched(block);
      Interval const covered = band.of_all(n_rows).blocks_covered(block);
      require(!some || holds(touched, column / block), c, "blocks touched", first, column);
      require(all || !holds(covered, column / block), c, "blocks covered", first, column);
    }
  }
  // No block at the ends of those that some row attends is without a column: rows of a band have no gap.
  Interval const keys = band.of_some(n_rows).from_0();
  for (int column : {keys.begin, keys.end - 1}) {
    bool some = false;
    for (int r = 0; r < n_rows; ++r) {
      some = some || attended(first + r, column);
    }
    require(keys.size() == 0 || some, c, "the ends", first, column);
  }
}

// Every range of neighbouring queries, and of neighbouring keys. Returns how many.
long check_all(Case const& c) {
  Mask const mask{c.window_left, c.window_right, c.chunk};
  long n_cases = 0;
  for (int first = 0; first < c.n_queries; ++first) {
    for (int n = 1; first + n <= c.n_queries; ++n, ++n_cases) {
      check(c, mask.keys_from(aligned_column(first, c.n_queries, c.n_keys), c.n_keys), first, n,
            c.n_keys, [&](int query, int key) { return attends(c, query, key); });
    }
  }
  for (int first = 0; first < c.n_keys; ++first) {
    for (int n = 1; first + n <= c.n_keys; ++n, ++n_cases) {
      check(c, mask.queries_from(first, c.n_queries, c.n_keys), first, n, c.n_queries,
            [&](int key, int query) { return attends(c, query, key); });
    }
  }
  return n_cases;
}

}  // namespace

int main() {
  long n_cases = 0;
  int const windows[] = {kNoWindow, 0, 1, 2, 5, 9};
  int const chunks[] = {0, 1, 2, 3, 7, 12};
  for (int n_queries = 1; n_queries <= 9; ++n_queries) {
    for (int n_keys = 0; n_keys <= 9; ++n_keys) {
      for (int left : windows) {
        for (int right : windows) {
          for (int chunk : chunks) {
            n_cases += check_all({n_queries, n_keys, left, right, chunk});
          }
        }
      }
    }
  }
  // Starts that do not ascend, or lie outside of the tensor, give rows within it.
  std::vector<int> const starts[] = {{0, 2, 2, 7}, {0, 5, 3, 7}, {-4, 9, 1, 100}, {7, 7, 0, 0}};
  for (auto const& of : starts) {
    Sequences const packed = Sequences::packed(of.data(), 7, 7);
    for (int sequence = 0; sequence < 3; ++sequence, ++n_cases) {
      Rows const rows = packed.rows_of(sequence, HostLoader{});
      bool const within = rows.begin >= 0 && rows.length >= 0 && rows.begin + rows.length <= 7;
      bool const ascends =
          of[sequence] >= 0 && of[sequence + 1] >= of[sequence] && of[sequence + 1] <= 7;
      bool const as_said =
          rows.begin == of[sequence] && rows.length == of[sequence + 1] - of[sequence];
      require(within && (!ascends || as_said), {}, "rows", sequence, rows.begin);
      require(packed.begin_of(sequence, HostLoader{}) == rows.begin, {}, "begin", sequence, 0);
    }
  }
  std::printf("%ld\n", n_cases);
}
