// CuTe, and what kernels use beside it, as units for the emulator include them: before anything else. It may be
// precompiled, so it includes nothing of this project and has a guard that holds for a copy of it.
#ifndef PYFLASH_EMULATOR_CUTE_H
#define PYFLASH_EMULATOR_CUTE_H

#include <cstdint>

// NOTE: descriptors hold addresses as instructions take them; CuTe asks this function for them.
uint32_t pyflash_shared_address(void const* address);
inline uint32_t __cvta_generic_to_shared(void const* address) {
  return pyflash_shared_address(address);
}
#define CUTE_CVTA_GENERIC_TO_SHARED_ACTIVATED 1

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <cstddef>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cute/algorithm/clear.hpp>
#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm80.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/swizzle_layout.hpp>
#include <cute/tensor.hpp>

#include <cutlass/numeric_types.h>

#endif
