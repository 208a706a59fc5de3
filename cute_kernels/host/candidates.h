// The built configs of op forward that selection chooses among, kept from call to call.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cute_kernels/host/config_map.h"
#include "cute_kernels/host/tuned.h"

namespace pyflash {

struct Gpu {
  int sm_arch;  // compute capability, major * 10 + minor; 0: the CPU, on which any config runs
  int n_sms;
};

struct Candidate {
  Kernel<Forward> kernel;
  int ctas_per_sm;  // that run at a time
};

struct TunedCandidate {
  size_t index;  // among all candidates
  TunedChoice const* choice;
  TunedTable const* table;
};

struct PricedCandidate {
  size_t index;  // among all candidates
  ProblemKind kind;
  GridShape shape;
  Costs costs;
  TunedTable const* table;
};

// The inputs of a candidate's expected time, beside the key below.
struct CostedSize {
  int batch, heads, heads_kv, seqlen_q, seqlen_k, total_q, total_k;
  Mask mask;
  int num_splits;

  friend bool operator==(CostedSize const&, CostedSize const&) = default;
};

// The candidate with the least expected time, for a problem that every candidate accepts.
struct CostedChoice {
  CostedSize size;
  PricedCandidate const* candidate;  // nullptr: the costs do not decide
  double time;
};

// The features that a class of problems needs of a kernel of a config: `features`, and predicated_head_dim where
// features_needed says so.
ForwardFeatures in_config(ForwardFeatures features, int d_head, int d_head_of_config);

struct CandidatesKey {
  DType dtype;
  int d_head;
  ForwardFeatures features;  // that the problem needs, predicated_head_dim aside
  int sm_arch;
  int n_sms;

  friend bool operator==(CandidatesKey const&, CandidatesKey const&) = default;
};

// The configs of the smallest d_head that is not below the one asked for and for which a built config runs on the device
// and covers the features.
struct Candidates {
  std::vector<Candidate> all;  // in order of rank
  // Those that rules look at, which is nothing but their shape: of several with the same B_r that accept any problem (no
  // `refusal`), the first stands for all.
  std::vector<size_t> by_rank;

  // The tables' rows for these configs: choices in the order of precedence, and costs, all of one table.
  std::shared_ptr<TunedTables const> tables;  // which these point into
  std::vector<TunedCandidate> choices;
  std::vector<PricedCandidate> priced;

  // Choices by costs are kept, the latest few: a model asks for few sizes again and again. nullptr: none is for that size.
  CostedChoice const* find_known(CostedSize const& size) const;
  void keep(CostedChoice const& choice) const;

 private:
  static constexpr size_t kMaxKnown = 16;
  mutable std::vector<CostedChoice> known_;
  mutable size_t oldest_ = 0;  // makes room
};

// How a row of the key's dtype fits its problems and its GPU.
struct Fit {
  enum class Lack { kNothing, kCodeForGpu, kFeatures } lack;
  int ctas_per_sm;  // that run at a time; 0 on the CPU
};
Fit fit_of(ConfigMapRow<Forward> const& row, CandidatesKey const& key);

// Valid until this thread asks again.
Candidates const& candidates_for(CandidatesKey const& key);

}  // namespace pyflash
