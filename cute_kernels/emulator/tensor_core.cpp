#include "cute_kernels/emulator/tensor_core.h"

#include <cstring>

#include "cute_kernels/emulator/float_vectors.h"

namespace pyflash::emulator {

namespace {

constexpr int kM = 16;
constexpr int kN = 8;
constexpr int kK = 16;
static_assert(kN == kWideWidth);

PYFLASH_WIDE void add_products_of_tile(float const* A, float const* B, float* D) {
  for (int m = 0; m < kM; m += kWideRows) {
    add_wide_products(A + m, kM, B, kN, kK, D + m * kN, kN);
  }
}

template <Floats (*kConvert)(Words)>
void mma(std::array<MmaRegisters*, kLanes> const& lanes) {
  // Lane 4 * g + t holds rows g and g + 8 of A and D, column g of B, and pairs from 2 * t along the other dimension.
  uint32_t pairs[kK / 2][kM + kN];  // along k: the rows of A, the columns of B
  float D[kM][kN];
  for (int lane = 0; lane < kLanes; ++lane) {
    int const g = lane / 4;
    int const t = lane % 4;
    MmaRegisters const& registers = *lanes[lane];
    for (int i = 0; i < 2; ++i) {
      pairs[4 * i + t][g] = registers.a[2 * i];
      pairs[4 * i + t][g + 8] = registers.a[2 * i + 1];
      pairs[4 * i + t][kM + g] = registers.b[i];
      std::memcpy(&D[g + 8 * i][2 * t], &registers.c[2 * i], 2 * sizeof(float));
    }
  }
  float A[kK][kM];
  float B[kK][kN];
  for (int k = 0; k < kK; k += 2) {
    for (int row = 0; row < kM + kN; row += kWidth) {
      Words both;
      std::memcpy(&both, &pairs[k / 2][row], sizeof both);
      Floats const even = kConvert(both & 0xffffu);
      Floats const odd = kConvert(both >> 16);
      std::memcpy(row < kM ? &A[k][row] : &B[k][row - kM], &even, sizeof even);
      std::memcpy(row < kM ? &A[k + 1][row] : &B[k + 1][row - kM], &odd, sizeof odd);
    }
  }
  add_products_of_tile(A[0], B[0], D[0]);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 2; ++i) {
      std::memcpy(&lanes[lane]->c[2 * i], &D[lane / 4 + 8 * i][lane % 4 * 2], 2 * sizeof(float));
    }
  }
}

}  // namespace

void mma_m16n8k16(std::array<MmaRegisters*, kLanes> const& lanes, DType dtype) {
  dtype == DType::FP16 ? mma<from_fp16>(lanes) : mma<from_bf16>(lanes);
}

uint32_t ldmatrix_register(MatrixRow const* rows, int lane, bool transposed) {
  int const line = lane / 4;
  int const pair = lane % 4 * 2;
  return transposed ? rows[pair][line] | uint32_t{rows[pair + 1][line]} << 16
                    : rows[line][pair] | uint32_t{rows[line][pair + 1]} << 16;
}

}  // namespace pyflash::emulator
