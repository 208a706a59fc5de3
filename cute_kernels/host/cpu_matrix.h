// Matrices in fp32 for the forward pass on the CPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cute_kernels/params.h"

namespace pyflash {

// A row-major fp32 matrix of whole GEMM tiles; elements beyond the problem are zero.
struct Tile {
  int64_t rows;
  int64_t columns;
  std::vector<float> data;

  Tile(int64_t min_rows, int64_t min_columns);

  float* row(int64_t r) { return data.data() + r * columns; }
  void clear() { std::fill(data.begin(), data.end(), 0.f); }
};

// C += A B.
void accumulate(Tile& C, Tile const& A, Tile const& B);

// Rows of q, k or v, (rows,n_columns), of one head.
template <class Element>
struct HeadMatrix {
  Element const* base;
  int64_t row_stride;
  int n_columns;

  void load(Tile& tile, int64_t first_row, int64_t n_rows) const {
    tile.clear();
    for (int64_t r = 0; r < n_rows; ++r) {
      Element const* const source = base + (first_row + r) * row_stride;
      std::transform(source, source + n_columns, tile.row(r), to_float);
    }
  }
  void load_transposed(Tile& tile, int64_t first_row, int64_t n_rows) const {
    tile.clear();
    for (int64_t r = 0; r < n_rows; ++r) {
      Element const* const source = base + (first_row + r) * row_stride;
      for (int c = 0; c < n_columns; ++c) {
        tile.row(c)[r] = to_float(source[c]);
      }
    }
  }

  static float to_float(Element x) { return static_cast<float>(x); }
};

}  // namespace pyflash
