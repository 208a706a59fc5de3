// The kernels of op backward before and after a config's own, for the emulator. Included by the emitted translation units only.
#pragma once

#include "cute_kernels/common/backward_preprocess.cuh"
#include "cute_kernels/emulator/machine.h"

namespace pyflash::emulator {

// A kernel before or after the main one.
template <int kThreads, int kSmemBytes, void (*kRun)(BackwardParams const& params)>
inline constexpr EmulatedKernel kQueriesKernel{
    .n_threads = kThreads,
    .smem_bytes = kSmemBytes,
    .access_bytes = 4,
    .starts_early = true,
    .watches_registers = false,
    .registers = 0,
    .cluster = nullptr,
    .tiles = {},
    .rings = {},
    .refusal = nullptr,
    .launch = nullptr,
    .attach = [](Machine* m) { machine = m; },
    .run_thread = [](void const* params) { kRun(*static_cast<BackwardParams const*>(params)); },
    .role = [](int) { return ""; }};

}  // namespace pyflash::emulator
