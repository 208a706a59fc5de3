// Which config runs a problem of op forward: the named one, or the call is refused. Without a name, the candidates are the configs of
// any family that are built for the problem's dtype, have code for the device, cover the problem's features and accept
// its strides, of the smallest d_head that is not below the problem's; rules.h says which of them is taken.
// On the CPU every built config is a candidate and the first in rank is taken; without any, the family's fallback.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cute_kernels/host/problem.h"
#include "cute_kernels/host/rules.h"
#include "cute_kernels/host/splits.h"

namespace pyflash {

struct GpuSelection {
  Choice choice;
  Splits splits;
  std::string reason() const;

  // What else the reason is made of.
  Gpu gpu;
  bool splits_asked_for;
  bool lists_tiles;  // on the device, before it runs

  // Where packed sequences of few rows are beside some of many: what runs the former, of at most so many rows, by equal shares of
  // their keys, beside the choice, which runs the latter.
  std::optional<Kernel<Forward>> of_few;
  int few_rows;
  int few_shares;
  int n_candidates;         // 0: the config was named
  std::string passed_over;  // a config of better rank that refuses this problem, and why
};

struct CpuSelection {
  ConfigOf<Forward> config;
  char const* reason;
};

// The features that the kernel of a config needs to run a problem. `named`: its short form. Refuses a config that is not for the
// problem's dtype and d_head.
ForwardFeatures features_needed(Problem const& problem, std::string_view named);

// The problem as the kernel with this row gets it, with so many splits: with a list of tiles where these are uneven and the row
// has such a kernel.
Forward::Params fitted(Forward::Params params, ConfigMapRow<Forward> const& row,
                       Splits const& splits);

// The problem of the sequences of few rows, as of_few gets it.
Forward::Params params_of_few(Forward::Params params, ConfigMapRow<Forward> const& row, int n_rows,
                              int n_shares);

// The problem of those of more rows, as the choice gets it; few: what runs beside it, with the list of its shares.
Forward::Params params_of_many(GpuSelection const& selection, Forward::Params const& problem,
                               Forward::Params const& few);

// Refuses a problem that no candidate runs, listing what is built.
GpuSelection select_on_gpu(Problem const& problem, Gpu const& gpu);
CpuSelection select_on_cpu(Problem const& problem);

// The config of this short form. Refuses one that cannot run the problem. On the CPU it need not be built, and one pass does what
// splits would.
GpuSelection named_on_gpu(Problem const& problem, Gpu const& gpu, std::string_view named);
CpuSelection named_on_cpu(Problem const& problem, std::string_view named);

}  // namespace pyflash
