// What units of native modules include first. It may be precompiled, so it includes nothing of this project and has a guard
// that holds for a copy of it.
#ifndef PYFLASH_NATIVE_PYTHON_AND_CUTE_H
#define PYFLASH_NATIVE_PYTHON_AND_CUTE_H

#include <cstddef>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/copy_sm80.hpp>
#include <cute/atom/mma_traits_sm80.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/swizzle_layout.hpp>
#include <cute/tensor.hpp>

#include <cutlass/numeric_types.h>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#endif
