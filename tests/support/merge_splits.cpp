// Runs the kernel of merge_splits.cu on the CPU. A line of input is a problem:
//   is_fixed num_splits batch heads seqlen d_head has_sinks, lse of each split, O of each split, sinks
// A line of output has the bits of O, in bf16, and those of lse.
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "cta_on_host.h"
//
#include "cute_kernels/merge_splits.cu"

using namespace pyflash;

namespace {

// NOTE: streams do not read nan and inf.
std::vector<float> read(size_t n) {
  std::vector<float> values(n);
  std::string word;
  for (float& value : values) {
    std::cin >> word;
    value = std::strtof(word.c_str(), nullptr);  // denormals, too
  }
  return values;
}

}  // namespace

int main() {
  bool is_fixed = false, has_sinks = false;
  ListedForwardParams params{};
  int seqlen = 0;
  while (std::cin >> is_fixed >> params.num_splits >> params.batch >> params.heads >> seqlen >>
         params.d_head >> has_sinks) {
    params.has_fixed_splits = is_fixed;
    params.cluster = 1;
    params.set_q_sequences(Sequences::padded(seqlen));
    int64_t const of_head = seqlen, n_rows = int64_t(params.batch) * params.heads * seqlen;
    params.lse_strides = {.batch = params.heads * of_head, .head = of_head, .split = n_rows};
    params.o_strides = {.batch = params.heads * of_head * params.d_head,
                        .row = int64_t(params.heads) * params.d_head,
                        .head = params.d_head};
    auto lse_partial = read(params.num_splits * n_rows);
    auto o_partial = read(params.num_splits * n_rows * params.d_head);
    auto const sinks = read(has_sinks ? params.heads : 0);
    params.lse_partial = lse_partial.data();
    params.o_partial = o_partial.data();
    params.sinks = {};
    if (has_sinks) {
      params.sinks.data = sinks.data();
      params.sinks.is_fp32 = true;
      params.sinks.strides = {.batch = 0, .row = 0, .head = 1};
    }
    std::vector<uint16_t> o(n_rows * params.d_head, 0x7fff);
    std::vector<float> lse(n_rows, NAN);
    params.o = o.data();
    params.lse = lse.data();
    if (merge_splits(params, DType::BF16, nullptr) != 0) {
      return 1;
    }
    for (uint16_t const bits : o) {
      std::cout << bits << ' ';
    }
    for (float const value : lse) {
      std::cout << std::bit_cast<uint32_t>(value) << ' ';
    }
    std::cout << '\n';
  }
}
