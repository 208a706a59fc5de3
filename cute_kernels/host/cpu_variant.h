// A variant on the CPU: the scores of one query and its keys.
#pragma once

#include <atomic>
#include <vector>

#include "cute_kernels/host/variant_program.h"
#include "cute_kernels/variant/arguments.h"

namespace pyflash {

// A call's variant. Its tensors are on the CPU.
struct CpuVariant {
  VariantProgram program;
  variant::Arguments arguments;
  // The parameter of which an index is outside, at a pair that counts; -1: none. Threads set it.
  mutable std::atomic<int> strayed = -1;

  // Refuses the call if a thread saw an index outside of a tensor.
  void check_inside() const;
};

// Where a row of scores is.
struct ScoreRow {
  int batch;
  int head;
  int query;
  variant::Lengths lengths;
  int first_key;
};

// Runs programs; it has memory for one row.
class VariantRunner {
 public:
  explicit VariantRunner(CpuVariant const& variant) : variant_(variant) {}

  // Turns n scaled scores of a row into the variant's; -inf where the mask hides a pair.
  void apply(ScoreRow const& row, float* scores, int n);

 private:
  // Returns the values at the n pairs, which last until the next run. Parameters with an index outside are in stray_.
  Word const* run(Program const& program, ScoreRow const& row, float const* scores, int n);
  Word index_of(ScoreRow const& row, int index, float const* scores, int i) const;
  void load(int param, Word* const* operands, int n);

  CpuVariant const& variant_;
  std::vector<std::vector<Word>> stack_;
  std::vector<std::vector<Word>> slots_;
  std::vector<int> stray_;  // by pair: the parameter of which an index is outside; -1: none
};

}  // namespace pyflash
