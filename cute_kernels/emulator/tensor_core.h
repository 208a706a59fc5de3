// What the warp-wide instructions compute, lane by lane as PTX lays their fragments out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cute_kernels/emulator/machine.h"
#include "cute_kernels/emulator/traffic.h"

namespace pyflash::emulator {

// mma.m16n8k16 of a warp, in place; sums in fp32, k ascending.
void mma_m16n8k16(std::array<MmaRegisters*, kLanes> const& lanes, DType dtype);

// A row of 8 16-bit elements.
using MatrixRow = std::array<uint16_t, 8>;

// The register that `lane` gets of an 8 x 8 matrix of eight rows.
uint32_t ldmatrix_register(MatrixRow const* rows, int lane, bool transposed);

}  // namespace pyflash::emulator
