#include "cute_kernels/host/cpu_matrix.h"

namespace pyflash {
namespace {

// Compiled for each of these, chosen when the library is loaded.
#if defined(__x86_64__) && defined(__gnu_linux__)
#define PYFLASH_CPU_CLONES \
  __attribute__((target_clones("default", "arch=haswell", "arch=skylake-avx512")))
#else
#define PYFLASH_CPU_CLONES
#endif

constexpr int kLanes = 16;
typedef float Vector __attribute__((vector_size(kLanes * sizeof(float)), aligned(sizeof(float))));
constexpr int kGemmRows = 4;  // with one Vector of columns: accumulators that stay in registers

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// C += A B; A: (rows,depth), B: (depth,columns), C: (rows,columns), all row-major; rows a multiple
// of kGemmRows, columns of kLanes.
PYFLASH_CPU_CLONES void gemm(float* C, float const* A, float const* B, int64_t rows,
                             int64_t columns, int64_t depth) {
  for (int64_t row = 0; row < rows; row += kGemmRows) {
    for (int64_t column = 0; column < columns; column += kLanes) {
      Vector acc[kGemmRows];
      for (int i = 0; i < kGemmRows; ++i) {
        acc[i] = reinterpret_cast<Vector const&>(C[(row + i) * columns + column]);
      }
      for (int64_t k = 0; k < depth; ++k) {
        Vector const b = reinterpret_cast<Vector const&>(B[k * columns + column]);
        for (int i = 0; i < kGemmRows; ++i) {
          acc[i] += A[(row + i) * depth + k] * b;
        }
      }
      for (int i = 0; i < kGemmRows; ++i) {
        reinterpret_cast<Vector&>(C[(row + i) * columns + column]) = acc[i];
      }
    }
  }
}

}  // namespace

Tile::Tile(int64_t min_rows, int64_t min_columns)
    : rows(round_up(min_rows, kLanes)),
      columns(round_up(min_columns, kLanes)),
      data(rows * columns) {}

void accumulate(Tile& C, Tile const& A, Tile const& B) {
  gemm(C.data.data(), A.data.data(), B.data.data(), C.rows, C.columns, A.columns);
}

}  // namespace pyflash
