// A kernel's params with what a variant captures, and what is made for it before the kernel runs.
#pragma once

#include <type_traits>
#include <vector>

#include "cute_kernels/variant/arguments.h"
#include "cute_kernels/variant/kernel_params.h"

namespace pyflash::emulator {

template <class Variant>
inline constexpr bool kIsVariant = !std::is_same_v<Variant, variant::NoVariant>;

template <class Base, class Variant>
struct VariantLaunch {
  variant::ParamsOf<Base, Variant> params{};
  std::vector<int> lists;
  std::vector<int> prepared;

  VariantLaunch() = default;
  explicit VariantLaunch(Base const& base) { static_cast<Base&>(params) = base; }

  void capture(variant::Arguments const& captured, variant::ListedProblem problem) {
    if constexpr (kIsVariant<Variant>) {
      problem.q.starts = captured.host_starts_q;
      problem.k.starts = captured.host_starts_k;
      params.captured = Variant::params_of(captured);
      prepared.resize(variant::prepared_size<Variant>(problem));
      params.prepared = variant::prepared_tables<Variant>(problem, prepared.data());
      for (size_t i = 0; i < prepared.size(); ++i) {
        variant::write_prepared<Variant>(params.captured, problem, prepared.data(), int64_t(i),
                                         HostLoader{});
      }
      if constexpr (Variant::kHasMask) {
        params.lists = problem.lists<Variant>();
        lists.resize(params.lists.size());
        params.lists.data = lists.data();
        for (int64_t i = 0; i < params.lists.n_lists(); ++i) {
          variant::write_list<Variant>(params.captured, problem, params.lists, i,
                                       variant::OneLane{}, HostLoader{});
        }
      }
    }
  }
};

}  // namespace pyflash::emulator
