// A problem of attention after the checks: the input of selection and of a launch.
#pragma once

#include <cstdint>
#include <string_view>

#include "cute_kernels/config.h"
#include "cute_kernels/host/options.h"
#include "cute_kernels/params.h"

namespace pyflash {

// The most batches, rows, heads, and of batches times heads: sums of two extents and a window are ints.
inline constexpr int64_t kMaxExtent = int64_t(1) << 29;

// What tuned tables tell problems apart by.
struct ProblemSize {
  int64_t pairs;  // of batch and head
  int64_t rows;   // seqlen_q
  int64_t keys;   // seqlen_k
  bool packed;
};

// kFew: at most 64 rows, as in decoding, where nothing is read twice.
enum class ProblemKind { kMany, kFew };
char const* name(ProblemKind kind);  // "many", "few"

struct Problem {
  DType dtype;
  int num_splits;              // as asked for; 0: selection chooses
  ListedForwardParams params;  // but for the outputs, num_splits and the lists of tiles and shares

  KvSource kv() const { return params.kv(); }

  // As kernels see it, after simplify_one_query; packed sequences of one query each over pages as padded ones.
  ProblemSize size() const;
  ProblemKind kind() const;
};

// The mask of the options for these sequences, without limits that cut nothing.
Mask mask_of(Options const& options, Sequences const& q, KvSource const& kv);

// Rewrites attention with one query into a problem that kernels run faster; queries must be padded. A window becomes fewer keys,
// but for pages, and the heads of q that share a head of k and v become rows of one Q block.
void simplify_one_query(Problem& problem);

// Refuses a config, of which `text` is the short form, that is not for the problem's dtype and d_head.
void check_config_fits(std::string_view text, DType dtype, int d_head, Problem const& problem);

}  // namespace pyflash
