#include "cute_kernels/host/cpu_matrix.h"

namespace pyflash {
namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Rows and columns of C whose accumulators stay in registers.
constexpr int kRows = kRowsMultiple;
constexpr int kColumns = kColumnsMultiple;

// C += A B; A: (rows,depth), whose elements are a_row apart along rows and a_column along depth; B: (depth,columns) and C:
// (rows,columns) row-major; rows a multiple of kRows, columns of kColumns.
using Gemm = void(Part C, float const* A, int64_t a_row, int64_t a_column, ConstPart B,
                  int64_t rows, int64_t columns, int64_t depth);

// One for instructions of vectors of so many bytes.
// NOTE: a macro, because compilers take vectors apart for the target of the function that is written down, before they
// inline it or clone it for another.
#define PYFLASH_GEMM(kName, kBytes)                                                               \
  void kName(Part C, float const* A, int64_t a_row, int64_t a_column, ConstPart B, int64_t rows,  \
             int64_t columns, int64_t depth) {                                                    \
    typedef float Vector __attribute__((vector_size(kBytes), aligned(sizeof(float)), may_alias)); \
    constexpr int kLanes = kBytes / sizeof(float);                                                \
    for (int64_t row = 0; row < rows; row += kRows) {                                             \
      for (int64_t column = 0; column < columns; column += kColumns) {                            \
        Vector acc[kRows][kColumns / kLanes];                                                     \
        for (int i = 0; i < kRows; ++i) {                                                         \
          for (int j = 0; j < kColumns / kLanes; ++j) {                                           \
            acc[i][j] = *reinterpret_cast<Vector const*>(C.data + (row + i) * C.stride + column + \
                                                         j * kLanes);                             \
          }                                                                                       \
        }                                                                                         \
        float const* a = A + row * a_row;                                                         \
        float const* b = B.data + column;                                                         \
        for (int64_t k = 0; k < depth; ++k, a += a_column, b += B.stride) {                       \
          for (int j = 0; j < kColumns / kLanes; ++j) {                                           \
            Vector const of_b = *reinterpret_cast<Vector const*>(b + j * kLanes);                 \
            for (int i = 0; i < kRows; ++i) {                                                     \
              acc[i][j] += a[i * a_row] * of_b;                                                   \
            }                                                                                     \
          }                                                                                       \
        }                                                                                         \
        for (int i = 0; i < kRows; ++i) {                                                         \
          for (int j = 0; j < kColumns / kLanes; ++j) {                                           \
            *reinterpret_cast<Vector*>(C.data + (row + i) * C.stride + column + j * kLanes) =     \
                acc[i][j];                                                                        \
          }                                                                                       \
        }                                                                                         \
      }                                                                                           \
    }                                                                                             \
  }

PYFLASH_GEMM(gemm_16_bytes, 16)
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2,fma"))) PYFLASH_GEMM(gemm_32_bytes, 32)
    __attribute__((target("avx512f"))) PYFLASH_GEMM(gemm_64_bytes, 64)
#endif
#undef PYFLASH_GEMM

        Gemm* gemm_of_this_cpu() {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) {
    return gemm_64_bytes;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return gemm_32_bytes;
  }
#endif
  return gemm_16_bytes;
}

Gemm* const gemm = gemm_of_this_cpu();

}  // namespace

Tile::Tile(int64_t min_rows, int64_t min_columns)
    : rows(round_up(min_rows, kColumns)),
      columns(round_up(min_columns, kColumns)),
      data(rows * columns) {}

void accumulate(Tile& C, Tile const& A, Tile const& B) {
  accumulate(C.part(), A.part(), B.part(), C.rows, C.columns, A.columns);
}

void accumulate(Part C, ConstPart A, ConstPart B, int64_t rows, int64_t columns, int64_t depth) {
  gemm(C, A.data, A.stride, 1, B, rows, columns, depth);
}

void accumulate_transposed(Part C, ConstPart A, ConstPart B, int64_t rows, int64_t columns,
                           int64_t depth) {
  gemm(C, A.data, 1, A.stride, B, rows, columns, depth);
}

}  // namespace pyflash
