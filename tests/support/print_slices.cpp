// Cuts problems into slices. A line of input is one:
//   most_bytes is_fixed packed paged batch heads heads_kv rows num_splits d_head
// A line of output has a slice's sequences, heads of q and elements of lse, and where each pointer of it begins, in elements.
#include <iostream>

#include "cute_kernels/host/slices.h"

using namespace pyflash;

int main() {
  static uint16_t memory[1 << 20];
  static int ints[1 << 12];
  static float floats[1 << 16];
  int64_t most_bytes = 0;
  bool packed = false, paged = false;
  int rows = 0;
  Forward::Params params{};
  while (std::cin >> most_bytes >> params.has_fixed_splits >> packed >> paged >> params.batch >>
         params.heads >> params.heads_kv >> rows >> params.num_splits >> params.d_head) {
    params.cluster = 1;
    params.q = params.kv_data.k = params.kv_data.v = memory;
    params.o = memory;
    params.lse = floats;
    params.set_q_sequences(packed ? Sequences::packed(ints, rows, rows) : Sequences::padded(rows));
    // Strides of other layouts each.
    int const of_batch = packed ? 0 : 1;
    params.q_strides = {.batch = of_batch * 7001, .row = 1, .head = 101};
    params.o_strides = {.batch = of_batch * 5003, .row = 1, .head = 53};
    params.kv_strides.k = {.batch = paged ? 3 : of_batch * 9007, .row = 1, .head = 211};
    params.kv_strides.v = {.batch = paged ? 3 : of_batch * 8009, .row = 1, .head = 307};
    params.lse_strides = {.batch = of_batch * params.heads * rows,
                          .head = rows,
                          .split = int64_t(packed ? 1 : params.batch) * params.heads * rows};
    params.pages = {};
    if (paged) {
      params.pages.table = params.pages.lengths = ints;
      params.pages.table_stride = 17;
    }
    params.sinks = {.data = floats, .strides = {.batch = 0, .row = 0, .head = 1}, .is_fp32 = true};
    params.alibi_slopes = {
        .data = memory, .strides = {.batch = of_batch * 19, .row = 0, .head = 2}, .is_fp32 = false};
    auto const from = [](auto const* base, void const* data) {
      return static_cast<decltype(base)>(data) - base;
    };
    for_each_slice(
        params,
        [&](Forward::Params const& slice) {
          std::cout << slice.batch << ' ' << slice.heads << ' ' << slice.heads_kv << ' '
                    << slice.lse_strides.split;
          for (void const* data :
               {slice.q, static_cast<void const*>(slice.o), slice.kv_data.k, slice.kv_data.v}) {
            std::cout << ' ' << from(memory, data);
          }
          std::cout << ' ' << from(floats, slice.lse) << ' ' << from(floats, slice.sinks.data)
                    << ' ' << from(memory, slice.alibi_slopes.data);
          if (paged) {
            std::cout << ' ' << from(ints, slice.pages.table) << ' '
                      << from(ints, slice.pages.lengths);
          }
          std::cout << '\n';
        },
        most_bytes);
    std::cout << '\n';
  }
}
