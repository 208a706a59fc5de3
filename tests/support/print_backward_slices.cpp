// Slices of a backward whose kernels know the heads of the whole problem. A line of input is a problem:
//   d_head B_r B_c seqlen_q seqlen_k batch heads heads_kv packed deterministic causal kernel
// where packed sequences of these lengths follow one another, and the kernel is 0: SM80's, 1: SM90's with dropout, 2: SM90's with a variant. A line of output has the blocks of keys of a head, the CTAs that
// divide the query heads of a group, the bytes of all sums, those of the workspace, and of each slice: first head, heads, bytes of its
// sums, bytes of its workspace, and whether each part of it begins with the slice's first row, behind that of the slice that runs
// beside it.
#include <iostream>

#include "cute_kernels/backward.h"
#include "cute_kernels/sm80/backward/grid.h"
#include "cute_kernels/sm80/backward/host.h"
#include "cute_kernels/sm90/backward/host.h"

using namespace pyflash;

namespace {

int64_t bytes_of_sums(BackwardParams const& params) {
  return 4 * params.columns * (params.n_slice_sum_rows() + 2 * int64_t(params.n_key_rows()));
}

int64_t bytes_of_workspace(BackwardParams const& params) {
  int64_t n = 0;
  for (auto const& buffer : Backward::workspace(params)) {
    n += 4 * buffer.n_elements;
  }
  return n;
}

float* place(size_t part) { return reinterpret_cast<float*>(int64_t(part + 1) << 44); }

}  // namespace

int main() {
  FlashBackwardKernelConfig config{};
  enum Kernel { kSm80, kSm90Dropout, kSm90Variant };
  int seqlen_q, seqlen_k, kernel;
  bool packed, causal;
  BackwardParams params{};
  while (std::cin >> config.d_head >> config.B_r >> config.B_c >> seqlen_q >> seqlen_k >>
         params.batch >> params.heads >> params.heads_kv >> packed >> params.deterministic >>
         causal >> kernel) {
    static int starts[1];
    params.q_sequences = packed ? Sequences::packed(starts, seqlen_q, seqlen_q * params.batch)
                                : Sequences::padded(seqlen_q);
    params.k_sequences = packed ? Sequences::packed(starts, seqlen_k, seqlen_k * params.batch)
                                : Sequences::padded(seqlen_k);
    params.mask = causal ? Mask{.window_right = 0} : Mask{};
    params.dropout = {.p = kernel == kSm90Dropout ? 0.5f : 0.f};
    FlashBackwardSm90Config of_sm90{};
    of_sm90.d_head = config.d_head, of_sm90.B_r = config.B_r, of_sm90.B_c = config.B_c;
    BackwardShape const sm90 = tile_shape(of_sm90);
    params.set_shape(kernel == kSm80          ? tile_shape(config)
                     : kernel == kSm90Variant ? with_variant(sm90)
                                              : sm90);
    // As allocated. NOTE: addresses are compared, not used.
    auto const whole = Backward::workspace(params);
    for (size_t part = 0; part < whole.size(); ++part) {
      params.*whole[part].pointer = place(part);
    }
    std::cout << params.n_key_blocks() << ' ' << params.ctas_of_group << ' '
              << 4 * params.columns *
                     (params.n_workspace_rows() +
                      (params.ctas_of_group > 1
                           ? 2 * params.n_heads_of_keys() * int64_t(params.padded_k)
                           : 0))
              << ' ' << bytes_of_workspace(params);
    for (int i = 0; i < params.n_slices(); ++i) {
      BackwardParams const slice = params.slice(i);
      int const row = slice.first_slice_row();
      auto const begins = [&](size_t part, float const* first) {
        int64_t const n = whole[part].n_elements;
        return first == place(part) + (params.runs_two_slices && i % 2 == 1 ? n / 2 : 0);
      };
      bool begin = begins(0, slice.sums_of(row)) && begins(1, slice.lse2 + row) &&
                   begins(2, slice.minus_delta + row);
      begin = begin && (!slice.deterministic ||
                        begins(3, slice.turns + int64_t(row) * slice.columns / kSumsOfTurn));
      begin = begin &&
              (slice.ctas_of_group == 1 ||
               begins(4, slice.dkv_sum + int64_t(slice.first_key_row()) * slice.columns)) &&
              begins(6, slice.order_of_keys);
      if (kernel == kSm80) {
        int const tiles = int(sm80::backward::n_ctas(config, slice));
        begin = begin && tiles == slice.n_key_blocks() * slice.heads_of_slice * slice.ctas_of_group;
      }
      std::cout << ' ' << slice.first_head_of_slice << ' ' << slice.heads_of_slice << ' '
                << bytes_of_sums(slice) << ' ' << bytes_of_workspace(slice) << ' ' << begin;
    }
    std::cout << '\n';
  }
}
