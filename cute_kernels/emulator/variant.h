// A kernel's params with what a variant captures, and what is made for it before the kernel runs.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "cute_kernels/variant/arguments.h"
#include "cute_kernels/variant/gradient_problem.h"
#include "cute_kernels/variant/kernel_params.h"
#include "cute_kernels/variant/mask_bits.h"
#include "cute_kernels/variant/query_lists.h"
#include "cute_kernels/variant/tile_order.h"

namespace pyflash::emulator {

using variant::kIsVariant;

template <class Base, class Variant>
struct VariantLaunch {
  variant::ParamsOf<Base, Variant> params{};
  std::vector<int> lists;
  std::vector<variant::BlockSpan> spans;
  std::vector<int> prepared;
  std::vector<uint32_t> bits;
  std::vector<ListedTile> order;

  VariantLaunch() = default;
  explicit VariantLaunch(Base const& base) { static_cast<Base&>(params) = base; }

  // For op forward.
  void capture(variant::Arguments const& captured, variant::ListedProblem problem,
               bool takes_order) {
    if constexpr (kIsVariant<Variant>) {
      prepare(captured, problem);
      if constexpr (Variant::kHasMask) {
        problem = with_host_starts(problem, captured);
        params.lists = problem.lists<Variant>();
        lists.resize(params.lists.size());
        params.lists.data = lists.data();
        judge(problem);
        params.spans = variant::block_spans<Variant>(problem);
        spans.resize(params.spans.size(params.lists));
        params.spans.data = spans.data();
        for (int64_t i = 0; i < params.lists.n_lists(); ++i) {
          variant::write_list<Variant>(params.captured, problem, params.lists, params.spans, i,
                                       variant::OneLane{}, HostLoader{});
        }
        if (variant::kSortsTiles<Variant> && takes_order) {
          sort(variant::TileSort{params.lists, problem.batch});
        }
      }
    }
  }

  // For op backward, with the B_r and B_c of the config.
  void capture(variant::Arguments const& captured, BackwardParams const& problem, int B_r, int B_c,
               bool takes_order) {
    if constexpr (kIsVariant<Variant>) {
      prepare(captured, variant::prepared_problem(problem, B_r, B_c));
      if constexpr (Variant::kHasMask) {
        variant::ListedProblem const listed =
            with_host_starts(variant::gradient_problem(problem, B_r, B_c), captured);
        params.lists = variant::query_lists<Variant>(listed);
        lists.resize(params.lists.size());
        params.lists.data = lists.data();
        for (int64_t i = 0; i < params.lists.n_lists(); ++i) {
          variant::write_query_list<Variant>(params.captured, listed, params.lists, i,
                                             variant::OneLane{}, HostLoader{});
        }
        if (variant::kSortsKeyTiles<Variant> && takes_order) {
          sort(variant::KeyTileSort{params.lists});
        }
      }
    }
  }

 private:
  static variant::ListedProblem with_host_starts(variant::ListedProblem problem,
                                                 variant::Arguments const& captured) {
    problem.q.starts = captured.host_starts_q;
    (problem.k_lengths != nullptr ? problem.k_lengths : problem.k.starts) = captured.host_starts_k;
    return problem;
  }

  // Where there are bits of the mask.
  void judge(variant::ListedProblem& problem) {
    bits.resize(variant::bits_size<Variant>(problem));
    if (bits.empty()) {
      return;
    }
    variant::JudgedBlock judged[variant::kMostJudged];
    int const n_blocks = int(params.lists.n_lists()) * params.lists.blocks;
    for (int i = 0; i < n_blocks; i += variant::kMostJudged) {
      variant::judge_blocks_from<Variant>(
          params.captured, params.prepared, problem, params.lists, bits.data(), i,
          smaller(variant::kMostJudged, n_blocks - i), variant::HostCta{judged}, HostLoader{});
    }
    params.bits = bits.data();
    problem.is_judged = true;
  }

  template <class Sort>
  void sort(Sort const& tiles) {
    if (tiles.size() == 0) {
      return;
    }
    order.resize(pyflash::ceil_div(tiles.size(), int64_t(2)));
    auto* const list = reinterpret_cast<int*>(order.data());
    std::vector<int> lengths(tiles.group_size());
    for (int group = 0; group < tiles.n_groups(); ++group) {
      for (size_t i = 0; i < lengths.size(); ++i) {
        lengths[i] = tiles.length(group, int(i));
      }
      for (size_t i = 0; i < lengths.size(); ++i) {
        tiles.write(list, group, int(i), lengths.data());
      }
    }
    params.order_of_tiles = list;
  }

  void prepare(variant::Arguments const& captured, variant::ListedProblem const& given) {
    variant::ListedProblem const problem = with_host_starts(given, captured);
    params.captured = Variant::params_of(captured);
    prepared.resize(variant::prepared_size<Variant>(problem));
    params.prepared = variant::prepared_tables<Variant>(problem, prepared.data());
    for (size_t i = 0; i < prepared.size(); ++i) {
      variant::write_prepared<Variant>(params.captured, problem, prepared.data(), int64_t(i),
                                       HostLoader{});
    }
  }
};

}  // namespace pyflash::emulator
