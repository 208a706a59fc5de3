// What launchers of kernels of gradients with a variant share: launch.h, of op backward.
#pragma once

#include <cstdint>

#include "cute_kernels/second_stream.h"
#include "cute_kernels/variant/gradient_problem.h"
#include "cute_kernels/variant/launch.h"
#include "cute_kernels/variant/query_lists.h"

namespace pyflash::variant {

// Deterministic kernels walk no lists.
template <class Variant>
int64_t query_lists_size(BackwardParams const& params, ListedProblem const& listed) {
  return Variant::kHasMask && !params.deterministic ? query_lists<Variant>(listed).size() : 0;
}

// Launches what writes the lists at `memory`, where there are any.
template <class Variant>
cudaError_t make_query_lists(Making const& making, BlockLists& lists,
                             typename Variant::Params const& captured, BackwardParams const& params,
                             ListedProblem const& listed, int* memory) {
  lists = {};
  if (query_lists_size<Variant>(params, listed) == 0) {
    return cudaSuccess;
  }
  lists = query_lists<Variant>(listed);
  lists.data = memory;
  return write_lists(making, lists.n_lists(), lists.blocks, captured, listed, lists);
}

// The ints of the order of tiles, where there is one.
template <class Variant>
int64_t order_size(BackwardParams const& params, ListedProblem const& listed, bool takes_order) {
  return kSortsKeyTiles<Variant> && takes_order && query_lists_size<Variant>(params, listed) > 0
             ? KeyTileSort{query_lists<Variant>(listed)}.size()
             : 0;
}

// Runs a config's kernel with a variant, and the kernels of the op before and after it. Overloads of the family launch it, and
// say whether it takes an order of tiles.
template <auto kConfig, class Variant, Makers const& kMakers>
int run_gradients(GradientRow const& row, size_t i, BackwardParams const& params,
                  Arguments const& arguments, int* memory, bool is_made, void* stream) {
  auto const on = static_cast<cudaStream_t>(stream);
  Making const making{kMakers, on, is_made};
  auto const captured = Variant::params_of(arguments);
  ListedProblem const prepared = prepared_problem(params, kConfig.B_r, kConfig.B_c);
  ListedProblem const listed = gradient_problem(params, kConfig.B_r, kConfig.B_c);
  Made<Variant> made{{}, prepared_tables<Variant>(prepared, memory)};
  cudaError_t error = make_prepared<Variant>(making, captured, prepared, memory);
  memory += prepared_size<Variant>(prepared);
  if (error == cudaSuccess) {
    error = make_query_lists<Variant>(making, made.lists, captured, params, listed, memory);
  }
  if (error == cudaSuccess &&
      order_size<Variant>(params, listed, takes_order(kConfig, params)) > 0) {
    error = make_order(making, made.order_of_tiles, KeyTileSort{made.lists},
                       memory + query_lists_size<Variant>(params, listed));
  }
  if (error != cudaSuccess) {
    return error;
  }
  return run_slices_in_streams(params, stream, [&](BackwardParams const& slice, void* of) -> int {
    if (int const failed = preprocess_backward(slice, kConfig.dtype, of)) {
      return failed;
    }
    cudaError_t const launched =
        launch_variant<Variant>(row.row.kernels.data[i], kConfig, row.row, slice, captured, made,
                                static_cast<cudaStream_t>(of));
    return launched != cudaSuccess ? launched : postprocess_backward(slice, kConfig.dtype, of);
  });
}

// The row of a config whose plain row is `row`.
template <auto kConfig, class Variant, Makers const& kMakers>
GradientRow make_variant_row(char const* key, ConfigMapRow<Backward> const& row) {
  return {.key = key,
          .most_positions = Variant::kMostPositions,
          .row = row,
          .makes_of_tensors = kMakesOfTensors<Variant>,
          .made = [](BackwardParams const& params) -> MadeBefore {
            ListedProblem const listed = gradient_problem(params, kConfig.B_r, kConfig.B_c);
            bool const has_order = takes_order(kConfig, params);
            int64_t const n_ints =
                prepared_size<Variant>(prepared_problem(params, kConfig.B_r, kConfig.B_c)) +
                query_lists_size<Variant>(params, listed) +
                order_size<Variant>(params, listed, has_order);
            return made_before(listed, has_order, !params.deterministic, n_ints);
          },
          .run = run_gradients<kConfig, Variant, kMakers>};
}

}  // namespace pyflash::variant
