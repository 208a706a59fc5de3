// A problem without tensors: the arguments of select.
#pragma once

#include <cstdint>
#include <utility>

#include "cute_kernels/host/call.h"

namespace pyflash {

struct Extents {
  int64_t batch;  // packed: the number of sequences
  int64_t heads;
  int64_t heads_kv;
  int64_t seqlen_q;  // packed: max_seqlen_q
  int64_t seqlen_k;
  int64_t d_head;
  int64_t total_q = 0;  // packed: rows of q; 0: sequences are all as long as the longest
  int64_t total_k = 0;  // the same of k and v
  int64_t page_size =
      0;  // of k and v in pages, with room for seqlen_k keys of a sequence; 0: they are not
};

// In the order of select's schema.
inline constexpr std::pair<char const*, int64_t Extents::*> kExtents[] = {
    {"batch", &Extents::batch},       {"heads", &Extents::heads},
    {"heads_kv", &Extents::heads_kv}, {"seqlen_q", &Extents::seqlen_q},
    {"seqlen_k", &Extents::seqlen_k}, {"d_head", &Extents::d_head}};

// These may be left out.
inline constexpr std::pair<char const*, int64_t Extents::*> kTotals[] = {
    {"total_q", &Extents::total_q},
    {"total_k", &Extents::total_k},
    {"page_size", &Extents::page_size}};

// As `make`, problem_of or problem_as_asked, of a call with contiguous tensors of these extents, without data.
// d_head may also be that of any config that is loaded.
Problem problem_like(DType dtype, bool packed, Extents const& extents, Options options,
                     Problem (*make)(Call const& call, int64_t max_d_head) = problem_of);

}  // namespace pyflash
