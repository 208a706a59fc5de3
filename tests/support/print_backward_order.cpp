// The order of the tiles of an SM90 backward. A line of input is a problem:
//   d_head B_c seqlen_q seqlen_k batch heads heads_kv CTAs, and whether heads may have their sums of dQ in the same memory, sums have
// one order, the mask is causal, and the sequences are packed
// A line of output is the heads of a section, those that have sums at a time, and block of keys and head of each tile.
#include <iostream>

#include "cute_kernels/sm90/backward/plan.h"

int main() {
  using namespace pyflash;
  int d_head, B_c, seqlen_q, seqlen_k, batch, heads, heads_kv, n_ctas;
  bool recycles, in_order, causal, packed;
  while (std::cin >> d_head >> B_c >> seqlen_q >> seqlen_k >> batch >> heads >> heads_kv >>
         n_ctas >> recycles >> in_order >> causal >> packed) {
    FlashBackwardSm90Config config{};
    config.d_head = d_head;
    config.B_c = B_c;
    sm90::backward::KernelParams params{};
    int const starts[1] = {0};
    auto const sequences = [&](int longest) {
      return packed ? Sequences::packed(starts, longest, longest * batch)
                    : Sequences::padded(longest);
    };
    params.problem.q_sequences = sequences(seqlen_q);
    params.problem.k_sequences = sequences(seqlen_k);
    params.problem.deterministic = in_order;
    params.problem.mask = causal ? Mask{.window_right = 0} : Mask{};
    params.problem.batch = batch;
    params.problem.heads = heads;
    params.problem.heads_kv = heads_kv;
    params.problem.set_shape({.B_r = 64, .B_c = B_c, .d_head = d_head}, recycles);
    sm90::backward::set_order(params, config, params.problem.n_heads_of_keys(), n_ctas);
    std::cout << params.order.by_section.divisor << ' ' << params.problem.heads_with_sums;
    for (int index = 0; index < params.order.n_tiles; ++index) {
      int n_block, head;
      params.order.find(n_block, head, index);
      std::cout << ' ' << n_block << ' ' << head;
    }
    std::cout << '\n';
  }
}
