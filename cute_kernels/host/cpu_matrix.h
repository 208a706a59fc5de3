// Matrices in fp32 for the forward pass on the CPU.
#pragma once

#include <algorithm>
#include <vector>

#include "cute_kernels/params.h"

namespace pyflash {

// A row-major fp32 matrix that is a whole number of GEMM tiles; what the problem does not fill is
// zero.
struct Tile {
  int rows;
  int columns;
  std::vector<float> data;

  Tile(int min_rows, int min_columns);

  float* row(int r) { return data.data() + size_t(r) * columns; }
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

  HeadMatrix(void const* tensor, TensorStrides const& strides, int batch, int head,
             int64_t first_row, int n_columns)
      : base(static_cast<Element const*>(tensor) + batch * strides.batch + head * strides.head +
             first_row * strides.row),
        row_stride(strides.row),
        n_columns(n_columns) {}

  void load(Tile& tile, int first_row, int n_rows) const {
    tile.clear();
    for (int r = 0; r < n_rows; ++r) {
      Element const* const source = base + (first_row + r) * row_stride;
      std::copy(source, source + n_columns, tile.row(r));
    }
  }
  void load_transposed(Tile& tile, int first_row, int n_rows) const {
    tile.clear();
    for (int r = 0; r < n_rows; ++r) {
      Element const* const source = base + (first_row + r) * row_stride;
      for (int c = 0; c < n_columns; ++c) {
        tile.row(c)[r] = source[c];
      }
    }
  }
};

}  // namespace pyflash
