// Runs the kernels of shares.cu on the CPU: lists shares, and merges parts of random numbers. A line of input is a problem:
//   n_shares heads heads_kv d_head has_sinks runs_beside longest_q longest_k batch, lengths of q, of k
// A line of output: whether the list is that of one thread, the largest difference of O and of lse from those of
// merge_shares_on_host, and how many elements of O these wrote and the kernel did not, or it alone.
#include <cstdint>
#include <iostream>
#include <random>
#include <vector>

#include "cta_on_host.h"
//
#include "cute_kernels/host/merge_shares.h"
#include "cute_kernels/shares.cu"
#include "lists_by_threads.h"

using namespace pyflash;

namespace {

constexpr uint16_t kUnwritten = 0x7fff;

struct Outputs {
  std::vector<uint16_t> o;
  std::vector<float> lse;

  Outputs(Forward::Params& params, int64_t n_rows)
      : o(n_rows * params.d_head, kUnwritten), lse(n_rows, 1e30f) {
    params.o = o.data();
    params.lse = lse.data();
  }
};

float to_float(uint16_t bits) {
  BFloat16 value;
  value.bits = bits;
  return float(value);
}

struct OneThreadOfHost {
  int index() const { return 0; }
  int count() const { return 1; }
  void sync() const {}
};

}  // namespace

int main() {
  Forward::Params params{};
  bool has_sinks = false;
  int n_shares = 0, longest_q = 0, longest_k = 0;
  while (std::cin >> n_shares >> params.heads >> params.heads_kv >> params.d_head >> has_sinks >>
         params.runs_beside >> longest_q >> longest_k >> params.batch) {
    Lengths const q(params.batch), k(params.batch);
    params.set_q_sequences(q.packed(longest_q));
    params.sequence_starts.k = k.starts.data();
    params.sequence_lengths.longest_k = longest_k;
    params.sequence_lengths.total_k = k.starts.back();
    params.set_mask({.window_left = kNoWindow, .window_right = 0, .chunk = 0});
    share_keys(params, {.B_r = 64, .B_c = 64, .packs_heads = true}, n_shares);
    int64_t const total = q.starts.back();
    params.o_strides = {.batch = 0, .row = params.heads * params.d_head, .head = params.d_head};
    params.lse_strides = {.batch = 0, .head = total, .split = total * params.heads};

    ShareListing const listing = params.share_listing();
    std::vector<int> list(listing.size(), -7), expected(listing.size(), -7);
    params.share_list = reinterpret_cast<float*>(list.data());
    int error = list_shares(params, DType::BF16, nullptr);
    auto const shared = std::make_unique<ShareListStorage>();
    write_shares(listing, expected.data(), *shared, OneThreadOfHost{}, HostLoader{});

    std::minstd_rand random(params.batch + n_shares);
    std::normal_distribution<float> normal;
    int64_t const n_rows = int64_t(2) * params.n_shares * params.rows_of_part();
    std::vector<float> lse_parts(n_rows), o_parts(n_rows * params.d_head), sinks(params.heads);
    for (auto* const values : {&lse_parts, &o_parts, &sinks}) {
      for (float& value : *values) {
        value = normal(random);
      }
    }
    params.lse_partial = lse_parts.data();
    params.o_partial = o_parts.data();
    params.sinks = {};
    if (has_sinks) {
      params.sinks = {
          .data = sinks.data(), .strides = {.batch = 0, .row = 0, .head = 1}, .is_fp32 = true};
    }
    Outputs const of_host(params, total * params.heads);
    merge_shares_on_host(params, DType::BF16);
    Outputs const of_kernel(params, total * params.heads);
    error += merge_shares(params, DType::BF16, nullptr);

    float worst_o = 0, worst_lse = 0;
    int64_t n_other = 0;
    for (size_t i = 0; i < of_host.o.size(); ++i) {
      uint16_t const a = of_host.o[i], b = of_kernel.o[i];
      n_other += (a == kUnwritten) != (b == kUnwritten);
      if (a != kUnwritten && b != kUnwritten) {
        float const difference = to_float(a) - to_float(b);
        worst_o = std::fmax(worst_o, std::fabs(difference));
      }
    }
    for (size_t i = 0; i < of_host.lse.size(); ++i) {
      worst_lse = std::fmax(worst_lse, std::fabs(of_host.lse[i] - of_kernel.lse[i]));
    }
    std::cout << (error == 0 && list == expected) << ' ' << worst_o << ' ' << worst_lse << ' '
              << n_other << '\n';
  }
}
