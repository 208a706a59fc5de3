// The built configs of op forward that selection chooses among, kept from call to call.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cute_kernels/host/config_map.h"
#include "cute_kernels/host/tuned.h"

namespace pyflash {

struct TunedKernel {
  Kernel<Forward> kernel;
  TunedChoice const* choice;
  TunedTable const* table;
};

struct PricedKernel {
  Kernel<Forward> kernel;
  ProblemKind kind;
  GridShape shape;
  Costs costs;
  TunedTable const* table;
};

// What the time that is expected of a candidate depends on, beside the key below.
struct CostedSize {
  int batch, heads, heads_kv, seqlen_q, seqlen_k, total_q, total_k;
  Mask mask;
  int num_splits;

  friend bool operator==(CostedSize const&, CostedSize const&) = default;
};

// The least that was expected for a problem that every candidate accepts.
struct CostedChoice {
  CostedSize size;
  PricedKernel const* kernel;  // nullptr: the costs do not decide
  double time;
};

// What a class of problems needs of a kernel of a config: `features`, and predicated_head_dim where features_needed says so.
ForwardFeatures in_config(ForwardFeatures features, int d_head, int d_head_of_config);

// sm_arch 0: the CPU, on which any config runs.
struct CandidatesKey {
  DType dtype;
  int d_head;
  ForwardFeatures features;  // that the problem needs, predicated_head_dim aside
  int sm_arch;
  int n_sms;

  friend bool operator==(CandidatesKey const&, CandidatesKey const&) = default;
};

// The configs of the smallest d_head that is not below the one asked for and for which a built config runs on the device
// and covers the features, in order of rank. Of several with the same B_r that accept any problem (no `refusal`), the
// first stands for all in `kernels`, because rules look at nothing else.
struct Candidates {
  int count = 0;
  std::vector<Kernel<Forward>> kernels;

  // What tables say of any of them: choices in the order of precedence, and costs, all of one table.
  std::shared_ptr<TunedTables const> tables;  // which these point into
  std::vector<TunedKernel> choices;
  std::vector<PricedKernel> priced;

  // The latest choices by costs, the oldest of which makes room: a model asks for few sizes again and again.
  static constexpr size_t kMaxKnown = 16;
  mutable std::vector<CostedChoice> known;
  mutable size_t oldest = 0;
};

// Valid until this thread asks again.
Candidates const& candidates_for(CandidatesKey const& key);

}  // namespace pyflash
