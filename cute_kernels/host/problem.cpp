#include "cute_kernels/host/problem.h"

#include <initializer_list>

#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/names.h"
#include "cute_kernels/host/options.h"

namespace pyflash {
namespace {

constexpr int kElementBytes = 2;

void const* advance(void const* tensor, int64_t n_elements) {
  return static_cast<char const*>(tensor) + n_elements * kElementBytes;
}

// The query attends the last window_left + 1 keys, and there are more.
void drop_keys_before_window(ForwardParams& params) {
  int const n_kept = params.mask.window_left + 1;
  int const n_dropped = params.k_sequences().longest - n_kept;
  if (params.k != nullptr) {
    params.k = advance(params.k, n_dropped * params.k_strides.row);
    params.v = advance(params.v, n_dropped * params.v_strides.row);
  }
  params.set_k_sequences(Sequences::padded(n_kept));
  params.mask.window_left = kNoWindow;
}

}  // namespace

Mask mask_of(int64_t window_left, int64_t window_right, int seqlen_q, int seqlen_k) {
  bool const left_cuts = window_left >= 0 && window_left < seqlen_k - 1;
  bool const right_cuts = window_right >= 0 && window_right < seqlen_q - 1;
  return {.window_left = left_cuts ? static_cast<int>(window_left) : kNoWindow,
          .window_right = right_cuts ? static_cast<int>(window_right) : kNoWindow};
}

void simplify_one_query(ForwardParams& params) {
  if (params.q_sequences().longest != 1) {
    return;
  }
  if (params.mask.cuts_left()) {
    drop_keys_before_window(params);
  }
  if (params.heads > params.heads_kv) {
    int const group = params.heads / params.heads_kv;
    params.heads = params.heads_kv;
    params.set_q_sequences(Sequences::padded(group));
    for (TensorStrides* strides : {&params.q_strides, &params.o_strides}) {
      strides->row = strides->head;
      strides->head *= group;
    }
    params.lse_strides.head *= group;
    for_each_per_head_option([&](PerHeadOption const& option) {
      TensorStrides& strides = (params.*option.values).strides;
      strides.row = strides.head;
      strides.head *= group;
    });
  }
}

void check_config_fits(std::string_view text, DType dtype, int d_head, Problem const& problem) {
  require(dtype == problem.dtype, "config '", text, "' is for ", name(dtype), ", q is ",
          name(problem.dtype));
  require(d_head >= problem.params.d_head, "config '", text, "' is for d_head up to ", d_head,
          ", q has d_head ", problem.params.d_head);
}

}  // namespace pyflash
