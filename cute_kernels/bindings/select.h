// Which config runs a problem.
//
// A config that was named runs, or the call is refused. Where none was named, the candidates are the configs built for
// the problem's dtype and d_head that have code for the device, in order of rank:
//   1. the first whose grid of batch * heads * ceil(seqlen_q / B_r) CTAs gives every multiprocessor at least one;
//   2. if no grid is that large, the first of those with the smallest B_r, whose grid is the largest.
// On the CPU every built config is a candidate and the first in rank is taken; without any, a default that differs only
// in dtype and d_head.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cute_kernels/bindings/config_map.h"

namespace pyflash {

// What selection looks at.
struct Problem {
  DType dtype;
  int64_t d_head;
  int64_t batch;
  int64_t heads;
  int64_t seqlen_q;
};

struct Gpu {
  int sm_arch;  // compute capability, major * 10 + minor
  int n_sms;
};

struct GpuSelection {
  Kernel kernel;
  std::string reason() const;

  // What the reason is made of.
  Gpu gpu;
  int64_t n_ctas;
  int n_candidates;
};

struct CpuSelection {
  FlashForwardKernelConfig config;
  char const* reason;
};

// CTAs of one launch, one per Q block, head and batch.
int64_t n_ctas(Problem const& problem, FlashForwardKernelConfig const& config);

// The best candidate. Refuses where there is none, listing what is built.
GpuSelection select_on_gpu(Problem const& problem, Gpu const& gpu);
CpuSelection select_on_cpu(Problem const& problem);

// The named config, checked against the problem. On a GPU it must be built for it.
FlashForwardKernelConfig named_config(std::string_view short_form, Problem const& problem);
Kernel named_kernel(std::string_view short_form, Problem const& problem, Gpu const& gpu);

}  // namespace pyflash
