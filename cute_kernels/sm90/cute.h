// What SM90 kernels take of CuTe. NOTE: not <cute/tensor.hpp>, which has the atoms of all architectures: to parse them takes as long
// as to parse the rest.
#pragma once

#include <cute/algorithm/clear.hpp>
#include <cute/algorithm/fill.hpp>
#include <cute/arch/copy_sm90.hpp>
#include <cute/tensor_impl.hpp>

#include "cute_kernels/generated/mma_sm90.h"
