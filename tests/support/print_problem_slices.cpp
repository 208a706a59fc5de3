// Slices of an SM90 backward, which are problems of their own. A line of input is a problem:
//   d_head B_r B_c seqlen_q seqlen_k batch heads heads_kv packed deterministic causal window
// where window is how many keys before its own a query attends, -1: all, and
// packed sequences of these lengths follow one another. Every tensor has strides of its own. A line of output has the blocks of
// keys of a head, whether sums are recycled, the bytes of all sums, those of the workspace, the elements of its parts, and of each slice: heads of q, heads of k,
// heads before them by where q, o, dO, dq, k, v, dk, dv, lse, its gradient and slopes begin (-1: elsewhere), bytes of its workspace,
// and of each part of that where it begins and ends in the part of the whole, in elements.
#include <iostream>

#include "cute_kernels/backward.h"
#include "cute_kernels/sm90/backward/host.h"

using namespace pyflash;

namespace {

int64_t bytes_of_workspace(BackwardParams const& params) {
  int64_t n = 0;
  for (auto const& buffer : Backward::workspace(params)) {
    n += 4 * buffer.n_elements;
  }
  return n;
}

// NOTE: addresses are compared, not used.
char* place(int i) { return reinterpret_cast<char*>(int64_t(i + 1) << 40); }

int64_t heads_before(void const* data, int i, int64_t stride, int bytes) {
  int64_t const n = static_cast<char const*>(data) - place(i);
  return n % (stride * bytes) == 0 ? n / (stride * bytes) : -1;
}

}  // namespace

int main() {
  FlashBackwardSm90Config config{};
  int seqlen_q, seqlen_k, window;
  bool packed, causal;
  BackwardParams params{};
  while (std::cin >> config.d_head >> config.B_r >> config.B_c >> seqlen_q >> seqlen_k >>
         params.batch >> params.heads >> params.heads_kv >> packed >> params.deterministic >>
         causal >> window) {
    static int starts[1];
    params.q_sequences = packed ? Sequences::packed(starts, seqlen_q, seqlen_q * params.batch)
                                : Sequences::padded(seqlen_q);
    params.k_sequences = packed ? Sequences::packed(starts, seqlen_k, seqlen_k * params.batch)
                                : Sequences::padded(seqlen_k);
    params.mask = {window < 0 ? kNoWindow : window, causal ? 0 : kNoWindow};
    params.q = place(0), params.q_strides.head = 1001;
    params.o = place(1), params.o_strides.head = 1003;
    params.grad_o = place(2), params.grad_o_strides.head = 1005;
    params.dq = place(3), params.dq_strides.head = 1007;
    params.k = place(4), params.k_strides.head = 1009;
    params.v = place(5), params.v_strides.head = 1011;
    params.dk = place(6), params.dk_strides.head = 1013;
    params.dv = place(7), params.dv_strides.head = 1015;
    params.lse = reinterpret_cast<float*>(place(8)), params.lse_strides.head = 1017;
    params.grad_lse = reinterpret_cast<float*>(place(9));
    params.alibi_slopes = {.data = place(10), .is_fp32 = true};
    params.alibi_slopes.strides.head = 3;
    params.set_shape(tile_shape(config));
    auto const whole = Backward::workspace(params);
    for (size_t part = 0; part < whole.size(); ++part) {
      params.*whole[part].pointer = reinterpret_cast<float*>(place(11 + int(part)));
    }
    std::cout << params.n_key_blocks() << ' ' << params.recycles_sums() << ' '
              << 4 * params.columns * params.n_workspace_rows() << ' '
              << bytes_of_workspace(params);
    for (auto const& part : whole) {
      std::cout << ' ' << part.n_elements;
    }
    for (int i = 0; i < params.n_slices(); ++i) {
      BackwardParams const x = params.slice(i);
      std::cout << ' ' << x.heads << ' ' << x.heads_kv << ' ' << heads_before(x.q, 0, 1001, 2)
                << ' ' << heads_before(x.o, 1, 1003, 2) << ' ' << heads_before(x.grad_o, 2, 1005, 2)
                << ' ' << heads_before(x.dq, 3, 1007, 2) << ' ' << heads_before(x.k, 4, 1009, 2)
                << ' ' << heads_before(x.v, 5, 1011, 2) << ' ' << heads_before(x.dk, 6, 1013, 2)
                << ' ' << heads_before(x.dv, 7, 1015, 2) << ' ' << heads_before(x.lse, 8, 1017, 4)
                << ' ' << heads_before(x.grad_lse, 9, 1017, 4) << ' '
                << heads_before(x.alibi_slopes.data, 10, 3, 4) << ' ' << bytes_of_workspace(x);
      for (auto const& part : Backward::workspace(x)) {
        int64_t const begin = x.*part.pointer - params.*part.pointer;
        std::cout << ' ' << begin << ' ' << begin + part.n_elements;
      }
    }
    std::cout << '\n';
  }
}
