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

template <Floats (*kConvert)(Words)>
std::array<float, kPerChunk> to_floats(std::byte const* chunk) {
  std::array<float, kPerChunk> values;
  if (chunk == nullptr) {
    values.fill(std::numeric_limits<float>::quiet_NaN());
    return values;
  }
  std::array<uint16_t, kPerChunk> halves;
  std::memcpy(halves.data(), chunk, sizeof halves);
  for (int i = 0; i < kPerChunk; i += kWidth) {
    Floats const floats = kConvert(Words{halves[i], halves[i + 1], halves[i + 2], halves[i + 3]});
    std::memcpy(&values[i], &floats, sizeof floats);
  }
  return values;
}

// A rows x kMmaDepth operand, from row first_row on, as (k, row) with rows `pitch` apart.
template <Floats (*kConvert)(Words)>
void load(uint64_t bits, bool mn_major, int first_row, int rows, int pitch, ReadChunk const& read,
          float* values) {
  Descriptor const descriptor(bits);
  if (mn_major) {
    for (int i = 0; i < rows / kPerChunk; ++i) {
      for (int k = 0; k < kMmaDepth; ++k) {
        auto const chunk =
            to_floats<kConvert>(read(descriptor.chunk(true, first_row / kPerChunk + i, k)));
        std::memcpy(&values[k * pitch + i * kPerChunk], chunk.data(), sizeof chunk);
      }
    }
    return;
  }
  for (int row = 0; row < rows; ++row) {
    for (int j = 0; j < kMmaDepth / kPerChunk; ++j) {
      auto const chunk = to_floats<kConvert>(read(descriptor.chunk(false, first_row + row, j)));
      for (int k = 0; k < kPerChunk; ++k) {
        values[(j * kPerChunk + k) * pitch + row] = chunk[k];
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

// Sums in fp32, k ascending; 8 sums at a time, so that none waits for its last addition.
void add_products(float const* A, float const* B, int n, float* D) {
  for (int m = 0; m < kMmaRows; m += 4) {
    for (int column = 0; column < n; column += 2 * kWidth) {
      Floats sums[4][2];
      for (int i = 0; i < 4; ++i) {
        std::memcpy(sums[i], &D[(m + i) * n + column], sizeof sums[i]);
      }
      for (int k = 0; k < kMmaDepth; ++k) {
        Floats b[2];
        std::memcpy(b, &B[k * n + column], sizeof b);
        for (int i = 0; i < 4; ++i) {
          sums[i][0] += A[k * kMmaRows + m + i] * b[0];
          sums[i][1] += A[k * kMmaRows + m + i] * b[1];
        }
      }
      for (int i = 0; i < 4; ++i) {
        sums[i][0] = canonical(sums[i][0]);
        sums[i][1] = canonical(sums[i][1]);
        std::memcpy(&D[(m + i) * n + column], sums[i], sizeof sums[i]);
      }
    }
  }
}

template <Floats (*kConvert)(Words)>
void multiply(MmaInFlight const& op, int warp, ReadChunk const& read) {
  WarpgroupMma const& mma = op.mma;
  float A[kMmaDepth * kMmaRows];
  if (mma.a != nullptr) {
    load_registers<kConvert>(op.a, A);
  } else {
    load<kConvert>(mma.a_desc, mma.a_is_mn_major, warp * kMmaRows, kMmaRows, kMmaRows, read, A);
  }
  std::vector<float> B(kMmaDepth * mma.n);
  load<kConvert>(mma.b_desc, mma.b_is_mn_major, 0, mma.n, mma.n, read, B.data());
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
      row_bytes(std::array{16, 128, 64, 32}[bits >> 62]),
      base_offset(bits >> 49 & 7) {}

uint32_t Descriptor::chunk(bool mn_major, int i, int j) const {
  uint32_t const chunks = row_bytes / kChunkBytes;  // in a row of the pattern
  uint32_t address = start;
  if (!mn_major) {
    uint32_t const along_k = chunks == 1 ? leading_offset : kChunkBytes;
    address += i % 8 * row_bytes + i / 8 * stride_offset + j * along_k;
  } else if (chunks == 1) {
    address += j % 8 * row_bytes + i * stride_offset + j / 8 * leading_offset;
  } else {
    address += i % chunks * kChunkBytes + i / chunks * leading_offset + j % 8 * row_bytes +
               j / 8 * stride_offset;
  }
  // The chunks of a row are permuted by the number of the row, which is in the address.
  return address ^ ((address >> 7) - base_offset & (chunks - 1)) << 4;
}

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

void multiply(MmaInFlight const& mma, int warp, ReadChunk const& read) {
  mma.mma.dtype == DType::FP16 ? multiply<from_fp16>(mma, warp, read)
                               : multiply<from_bf16>(mma, warp, read);
}

}  // namespace pyflash::emulator
