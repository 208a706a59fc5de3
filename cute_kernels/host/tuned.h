// Selection of op forward as data: what was measured on a GPU, as tables. A table has
//   choices  for a class of problems (dtype, d_head, features, ranges of rows, keys and pairs) the config, and the splits,
//            that were the fastest there
//   costs    of a config in a kind of problem: what a launch, a tile, a step and memory take (expected_time.h), from which the
//            time of any problem of that kind is expected
// select.h says when they decide. Tables are made from journals and read by Python (pyflash/op/tables.py), which hands all
// of them over as text.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cute_kernels/forward.h"
#include "cute_kernels/host/expected_time.h"
#include "cute_kernels/host/problem.h"

namespace pyflash {

struct Range {
  int64_t first;
  int64_t last;

  bool contains(int64_t value) const { return first <= value && value <= last; }
};

struct TunedChoice {
  DType dtype;
  int d_head;
  ForwardFeatures features;  // that the problem needs, predicated_head_dim aside
  Range pairs;
  Range rows;
  Range keys;
  bool packed;
  int num_splits;  // 0: the rule of splits.h
  ConfigOf<Forward> config;

  bool holds_for(ProblemSize const& size) const {
    return pairs.contains(size.pairs) && rows.contains(size.rows) && keys.contains(size.keys) &&
           packed == size.packed;
  }
};

struct TunedCosts {
  ConfigOf<Forward> config;
  ProblemKind kind;
  Costs costs;
};

struct TunedTable {
  std::string name;
  int sm_arch;
  int n_sms;
  std::vector<TunedChoice> choices;
  std::vector<TunedCosts> costs;
};

using TunedTables = std::vector<TunedTable>;

// Replaces all tables; returns the number of their rows. In the order of precedence, one line each:
//   table SM_ARCH N_SMS | NAME
//   choice DTYPE D_HEAD FEATURES PACKED PAIRS PAIRS ROWS ROWS KEYS KEYS NUM_SPLITS | SHORT_FORM
//   costs KIND LAUNCH TILE STEP SHARE ROWS MASK CAPPED MEGABYTE MERGE SPLIT PARTIAL | SHORT_FORM
// where FEATURES is as names.h has them and PACKED 0 or 1. Refuses, and changes nothing for, a line
// that does not read so, and the config of another op. A config that this version does not know is left out.
int64_t set_tuned_tables(std::string_view text);

// Never nullptr. A reader keeps what it was given.
std::shared_ptr<TunedTables const> tuned_tables();

// Changes whenever the tables do.
uint64_t tuned_generation();

}  // namespace pyflash
