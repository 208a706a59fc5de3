// Attention sinks as a kernel reads them.
#pragma once

#include "cute_kernels/device.h"
#include "cute_kernels/params.h"

namespace pyflash {

// The sink of a row of a head, fp32.
template <class Element>
CUTE_DEVICE float load_sink(ForwardParams const& params, int head, int row) {
  int64_t const offset = head * params.sink_strides.head + row * params.sink_strides.row;
  return params.sinks_are_fp32
             ? device::load(static_cast<float const*>(params.sinks) + offset)
             : static_cast<float>(device::load(static_cast<Element const*>(params.sinks) + offset));
}

}  // namespace pyflash
