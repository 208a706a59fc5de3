// The op `backward`. Its kernels run in a row: what the main one needs of each query, the main one, and what becomes of the
// sums of dQ.
#pragma once

#include <array>
#include <cstdint>

#include "cute_kernels/backward_params.h"
#include "cute_kernels/config.h"
#include "cute_kernels/op.h"

namespace pyflash {

// The kernels before and after the config's own. They return a cudaError_t. In kernel libraries alone: backward_phases.cu.
int preprocess_backward(BackwardParams const& params, DType dtype, void* stream);
int postprocess_backward(BackwardParams const& params, DType dtype, void* stream);

struct Backward {
  static constexpr char const* kName = "backward";
  using Params = BackwardParams;
  using Features = BackwardFeatures;
  using Shape = BackwardShape;

  static constexpr std::array kPhases = {Phase<BackwardParams>{.launch = preprocess_backward},
                                         Phase<BackwardParams>{},
                                         Phase<BackwardParams>{.launch = postprocess_backward}};

  // params: with the shape of a config.
  static constexpr std::array<Buffer<BackwardParams>, 7> workspace(BackwardParams const& params) {
    int64_t const n = params.n_slices_at_a_time();
    int64_t const n_rows = n * params.n_slice_rows();
    return {
        {{&BackwardParams::dq_sum, n * params.n_slice_sum_rows() * params.columns},
         {&BackwardParams::lse2, n_rows},
         {&BackwardParams::minus_delta, n_rows},
         {&BackwardParams::turns, params.deterministic ? n_rows * params.columns / kSumsOfTurn : 0},
         {&BackwardParams::dkv_sum, n * 2 * params.n_key_rows() * params.columns},
         {&BackwardParams::added, params.recycles_sums() ? params.heads_with_sums : 0},
         {&BackwardParams::order_of_keys,
          params.sorts_key_blocks() ? n * params.n_key_blocks() : 0}}};
  }
  static constexpr char const* kWorkspace =
      "the sums of dq, lse and delta of each query, whose turn it is to add to the sums, or how "
      "many have, the sums of dk and dv, and the order of blocks of keys";
};

}  // namespace pyflash
