// Matrices in fp32 for attention on the CPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cute_kernels/params.h"

namespace pyflash {

// A part of a matrix: its first element, and the elements from a row to the next.
struct Part {
  float* data;
  int64_t stride;
};
struct ConstPart {
  ConstPart(float const* data, int64_t stride) : data(data), stride(stride) {}
  ConstPart(Part const& part) : data(part.data), stride(part.stride) {}

  float const* data;
  int64_t stride;
};

// A row-major fp32 matrix of whole GEMM tiles; elements beyond the problem are zero.
struct Tile {
  int64_t rows;
  int64_t columns;
  std::vector<float> data;

  Tile(int64_t min_rows, int64_t min_columns);

  float* row(int64_t r) { return data.data() + r * columns; }
  // From an element on.
  Part part(int64_t r = 0, int64_t c = 0) { return {row(r) + c, columns}; }
  ConstPart part(int64_t r = 0, int64_t c = 0) const {
    return {data.data() + r * columns + c, columns};
  }
  void clear() { std::fill(data.begin(), data.end(), 0.f); }
};

// C += A B.
void accumulate(Tile& C, Tile const& A, Tile const& B);

inline constexpr int kRowsMultiple = 4;
inline constexpr int kColumnsMultiple = 16;

// C += A B, and C += A^T B. rows of C: a multiple of kRowsMultiple; columns: of kColumnsMultiple.
void accumulate(Part C, ConstPart A, ConstPart B, int64_t rows, int64_t columns, int64_t depth);
void accumulate_transposed(Part C, ConstPart A, ConstPart B, int64_t rows, int64_t columns,
                           int64_t depth);

// Rows [begin, end) of q, k or v, of one head: row_at(r) is the first element of row r, which becomes row r of the tile.
template <class RowAt>
void load_rows(Tile& tile, int begin, int end, int n_columns, RowAt const& row_at) {
  tile.clear();
  for (int r = begin; r < end; ++r) {
    auto const* const source = row_at(r);
    std::transform(source, source + n_columns, tile.row(r),
                   [](auto x) { return static_cast<float>(x); });
  }
}

// The same, transposed: row r becomes column r.
template <class RowAt>
void load_transposed(Tile& tile, int begin, int end, int n_columns, RowAt const& row_at) {
  tile.clear();
  for (int r = begin; r < end; ++r) {
    auto const* const source = row_at(r);
    for (int c = 0; c < n_columns; ++c) {
      tile.row(c)[r] = static_cast<float>(source[c]);
    }
  }
}

}  // namespace pyflash
