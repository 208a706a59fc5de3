// Which config runs a problem of op forward: the named one, or the call is refused. Without a name, the candidates are the configs of
// any family that are built for the problem's dtype, have code for the device, cover the problem's features and accept
// its strides, of the smallest d_head that is not below the problem's. Tuned tables (tuned.h) decide first:
//   5. the first row of a table of this GPU (architecture and number of SMs) that is for the problem's class;
//   6. the config with the least expected time, by the costs in the table of the GPU of this architecture with the nearest
//      number of SMs, if they include those of the config that rules 1 to 4 take.
// A row whose config is not a candidate is no row. Where no table decides, in order of rank:
//   1. if all queries, with the heads that share keys, fit in one tile of a config that packs them, the first of those, which
//      no other rule takes; if all queries fit in one block of the smallest B_r, the first of those: more rows would be idle;
// then of the preferred family, that of the first in rank,
//   2. the first whose grid of batch * heads * ceil(seqlen_q / B_r) CTAs gives every SM at least one;
//   3. but where a smaller B_r gives as many CTAs, the first of those: more rows would be idle;
//   4. if no grid is that large, the first of those with the smallest B_r: the largest grid.
// On the CPU every built config is a candidate and the first in rank is taken; without any, the family's fallback.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cute_kernels/host/config_map.h"
#include "cute_kernels/host/problem.h"
#include "cute_kernels/host/tuned.h"

namespace pyflash {

struct Gpu {
  int sm_arch;  // compute capability, major * 10 + minor
  int n_sms;
};

struct GpuSelection {
  Kernel<Forward> kernel;
  int num_splits;
  int cluster;  // of the CTAs that share a tile, a split each: num_splits, or 1
  std::string reason() const;

  // What the reason is made of.
  Gpu gpu;
  int64_t n_ctas;  // of one pass
  int n_key_blocks;
  int n_candidates;         // 0: the config was named
  std::string passed_over;  // a config of better rank that refuses this problem, and why
  int rule;                 // that chose it, by its number above
  TunedTable const* table;  // of rules 5 and 6; valid until this thread selects again
  double expected_time;     // of rule 6, in microseconds
  bool splits_asked_for;
};

// The features that the kernel of a config needs to run a problem. `named`: its short form. Refuses a config that is not for the
// problem's dtype and d_head.
ForwardFeatures features_needed(Problem const& problem, std::string_view named);

struct CpuSelection {
  ConfigOf<Forward> config;
  char const* reason;
};

// The number of splits by splits.h for a config of which ctas_per_sm CTAs fit on an SM.
int splits_by_rule(ForwardParams const& params, TileShape const& shape, int ctas_per_sm, int n_sms);
// Those that the problem asks for, or by the rule.
int splits_of(Problem const& problem, ConfigMapRow<Forward> const& row, Gpu const& gpu);

// `named`: a short form, or "". Refuses a config that cannot run, and where there is no candidate,
// listing what is built. On the CPU a named config need not be built, and one pass does what splits would.
GpuSelection select_on_gpu(Problem const& problem, Gpu const& gpu, std::string_view named);
CpuSelection select_on_cpu(Problem const& problem, std::string_view named);

}  // namespace pyflash
