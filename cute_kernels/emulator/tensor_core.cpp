#include "cute_kernels/emulator/tensor_core.h"

#include <cstring>

#include "cute_kernels/emulator/float_vectors.h"

namespace pyflash::emulator {

namespace {

constexpr int kM = 16;
constexpr int kN = 8;
constexpr int kK = 16;

template <Floats (*kConvert)(Words)>
void mma(std::array<MmaRegisters*, kLanes> const& lanes) {
  // Lane 4 * g + t holds rows g and g + 8 of A and D, column g of B, and pairs from 2 * t along the other dimension.
  Words pairs[kK / 2 / kWidth][kM + kN];  // along k: the rows of A, the columns of B
  alignas(Floats) float D[kM][kN];
  for (int lane = 0; lane < kLanes; ++lane) {
    int const g = lane / 4;
    int const t = lane % 4;
    MmaRegisters const& registers = *lanes[lane];
    for (int i = 0; i < 2; ++i) {
      pairs[i][g][t] = registers.a[2 * i];
      pairs[i][g + 8][t] = registers.a[2 * i + 1];
      pairs[i][kM + g][t] = registers.b[i];
      D[g][2 * t + i] = registers.c[i];
      D[g + 8][2 * t + i] = registers.c[2 + i];
    }
  }
  alignas(Floats) float A[kM][kK];
  alignas(Floats) float B[kK][kN];
  for (int i = 0; i < kK / 2 / kWidth; ++i) {
    for (int row = 0; row < kM + kN; ++row) {
      Floats const even = kConvert(pairs[i][row] & 0xffffu);
      Floats const odd = kConvert(pairs[i][row] >> 16);
      for (int t = 0; t < kWidth; ++t) {
        int const k = 2 * (kWidth * i + t);
        (row < kM ? A[row][k] : B[k][row - kM]) = even[t];
        (row < kM ? A[row][k + 1] : B[k + 1][row - kM]) = odd[t];
      }
    }
  }
  auto const vector = [](float& first) -> Floats& { return reinterpret_cast<Floats&>(first); };
  for (int m = 0; m < kM; m += 4) {  // 8 sums at a time, so that none waits for its last addition
    Floats sums[4][kN / kWidth];
    std::memcpy(sums, D[m], sizeof sums);
    for (int k = 0; k < kK; ++k) {
      for (int i = 0; i < 4; ++i) {
        for (int n = 0; n < kN; n += kWidth) {
          sums[i][n / kWidth] += A[m + i][k] * vector(B[k][n]);
        }
      }
    }
    for (Floats(&row)[kN / kWidth] : sums) {
      for (Floats& sum : row) {
        sum = canonical(sum);
      }
    }
    std::memcpy(D[m], sums, sizeof sums);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < 4; ++r) {
      lanes[lane]->c[r] = D[lane / 4 + r / 2 * 8][lane % 4 * 2 + r % 2];
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
