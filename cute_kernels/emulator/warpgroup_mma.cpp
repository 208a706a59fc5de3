#include "cute_kernels/emulator/warpgroup_mma.h"

#include <cstring>
#include <limits>

#include "cute_kernels/emulator/float_vectors.h"

namespace pyflash::emulator {

namespace {

constexpr int kPerChunk = 8;  // elements

// Column of an accumulator's register r, and its row less the lane's.
constexpr int column_of(int lane, int r) { return lane % 4 * 2 + r % 2 + r / 4 * 8; }
constexpr int row_of(int lane, int r) { return lane / 4 + r / 2 % 2 * 8; }

// 8 elements, 4 in each half.
template <Floats (*kConvert)(Words)>
std::array<Floats, 2> to_floats(std::byte const* chunk) {
  if (chunk == nullptr) {
    Floats const nan = Floats{} + std::numeric_limits<float>::quiet_NaN();
    return {nan, nan};
  }
  std::array<FourHalves, 2> halves;
  std::memcpy(halves.data(), chunk, sizeof halves);
  return {kConvert(__builtin_convertvector(halves[0], Words)),
          kConvert(__builtin_convertvector(halves[1], Words))};
}

// A rows x kMmaDepth operand, from row first_row on, as (k, row) with rows `pitch` apart.
template <Floats (*kConvert)(Words)>
void load(uint64_t bits, bool mn_major, int first_row, int rows, int pitch,
          SharedBytes const& shared, float* values) {
  Descriptor const descriptor(bits);
  if (mn_major) {
    for (int i = 0; i < rows / kPerChunk; ++i) {
      for (int k = 0; k < kMmaDepth; ++k) {
        auto const chunk =
            to_floats<kConvert>(shared.chunk(descriptor.chunk(true, first_row / kPerChunk + i, k)));
        std::memcpy(&values[k * pitch + i * kPerChunk], chunk.data(), sizeof chunk);
      }
    }
    return;
  }
  for (int row = 0; row < rows; row += kWidth) {
    for (int j = 0; j < kMmaDepth / kPerChunk; ++j) {
      std::array<std::array<Floats, 2>, kWidth> chunks;
      for (int i = 0; i < kWidth; ++i) {
        chunks[i] =
            to_floats<kConvert>(shared.chunk(descriptor.chunk(false, first_row + row + i, j)));
      }
      for (int k = 0; k < kPerChunk; ++k) {
        auto const of_row = [&](int i) { return chunks[i][k / kWidth][k % kWidth]; };
        Floats const column{of_row(0), of_row(1), of_row(2), of_row(3)};
        std::memcpy(&values[(j * kPerChunk + k) * pitch + row], &column, sizeof column);
      }
    }
  }
}

// Lane 4 * g + t holds rows g and g + 8, and pairs from 2 * t and from 2 * t + 8 along k.
template <Floats (*kConvert)(Words)>
void load_registers(std::array<uint32_t const*, kLanes> const& lanes, float* values) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < 4; ++r) {
      uint32_t const pair = lanes[lane][r];
      Floats const floats = kConvert(Words{pair & 0xffffu, pair >> 16, 0, 0});
      int const row = lane / 4 + r % 2 * 8;
      int const k = lane % 4 * 2 + r / 2 * 8;
      values[k * kMmaRows + row] = floats[0];
      values[(k + 1) * kMmaRows + row] = floats[1];
    }
  }
}

// Sums in fp32, k ascending; of 8 rows at a time, so that none waits for its last addition.
PYFLASH_WIDE void add_products(float const* A, float const* B, int n, float* D) {
  for (int m = 0; m < kMmaRows; m += kWideRows) {
    for (int column = 0; column < n; column += kWideWidth) {
      add_wide_products(A + m, kMmaRows, B + column, n, kMmaDepth, D + m * n + column, n);
    }
  }
}

template <Floats (*kConvert)(Words)>
void multiply(MmaInFlight const& op, int warp, SharedBytes const& shared) {
  WarpgroupMma const& mma = op.mma;
  float A[kMmaDepth * kMmaRows];
  if (mma.a != nullptr) {
    load_registers<kConvert>(op.a, A);
  } else {
    load<kConvert>(mma.a_desc, mma.a_is_mn_major, warp * kMmaRows, kMmaRows, kMmaRows, shared, A);
  }
  std::vector<float> B(kMmaDepth * mma.n);
  load<kConvert>(mma.b_desc, mma.b_is_mn_major, 0, mma.n, mma.n, shared, B.data());
  if (mma.negate_a != mma.negate_b) {
    for (float& a : A) {
      a = -a;
    }
  }
  std::vector<float>& D = op.accumulator->values;
  if (!mma.accumulate) {
    std::fill(D.begin(), D.end(), 0.f);
  }
  add_products(A, B.data(), mma.n, D.data());
}

}  // namespace

bool same_instruction(WarpgroupMma const& a, WarpgroupMma const& b) {
  return a.dtype == b.dtype && a.n == b.n && (a.a == nullptr) == (b.a == nullptr) &&
         a.a_desc == b.a_desc && a.b_desc == b.b_desc && a.a_is_mn_major == b.a_is_mn_major &&
         a.b_is_mn_major == b.b_is_mn_major && a.negate_a == b.negate_a &&
         a.negate_b == b.negate_b && a.accumulate == b.accumulate;
}

Descriptor::Descriptor(uint64_t bits)
    : start((bits & 0x3fff) << 4),
      leading_offset((bits >> 16 & 0x3fff) << 4),
      stride_offset((bits >> 32 & 0x3fff) << 4),
      chunk_bits(std::array{0, 3, 2, 1}[bits >> 62]),
      base_offset(bits >> 49 & 7) {}

void take_registers(Accumulator& accumulator) {
  accumulator.values.resize(kMmaRows * accumulator.n);
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < accumulator.n / 2; ++r) {
      float& value = accumulator.registers[lane][r];
      accumulator.values[row_of(lane, r) * accumulator.n + column_of(lane, r)] = value;
      value = std::numeric_limits<float>::quiet_NaN();
    }
  }
}

void give_registers(Accumulator const& accumulator) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < accumulator.n / 2; ++r) {
      accumulator.registers[lane][r] =
          accumulator.values[row_of(lane, r) * accumulator.n + column_of(lane, r)];
    }
  }
}

void multiply(MmaInFlight const& mma, int warp, SharedBytes const& shared) {
  mma.mma.dtype == DType::FP16 ? multiply<from_fp16>(mma, warp, shared)
                               : multiply<from_bf16>(mma, warp, shared);
}

}  // namespace pyflash::emulator
