// What the features of every op have in common. They are a struct of bools, all false by default, with kMembers, a list of
// its members, each with a `name`, as Python calls it, and a `value`, the pointer to the member. kExact, if there is one, has
// pointers to those whose kernels run no problem without them.
#pragma once

#include <iterator>
#include <type_traits>

namespace pyflash {

// For an op to assert.
template <class Features>
constexpr bool lists_every_member_once() {
  Features seen;
  for (auto const& member : Features::kMembers) {
    if (seen.*member.value) {
      return false;
    }
    seen.*member.value = true;
  }
  return sizeof(seen) == std::size(Features::kMembers);
}

template <class Features>
constexpr int count_features(Features const& features) {
  int n = 0;
  for (auto const& member : Features::kMembers) {
    n += features.*member.value;
  }
  return n;
}

template <class Features>
constexpr bool is_exact(bool Features::* value) {
  if constexpr (requires { Features::kExact; }) {
    for (auto const exact : Features::kExact) {
      if (exact == value) {
        return true;
      }
    }
  }
  return false;
}

// Whether a kernel with these features runs a problem that needs those.
template <class Features>
constexpr bool covers(Features const& features, Features const& needed) {
  for (auto const& member : Features::kMembers) {
    bool const has = features.*member.value, needs = needed.*member.value;
    if (needs != has && (needs || is_exact<Features>(member.value))) {
      return false;
    }
  }
  return true;
}

// Calls run(std::integral_constant<Features, kFeatures>{}) for the first of kBuilt that covers `needed`. False: none does.
template <class Features, Features... kBuilt, class Run>
bool run_first_that_covers(Features needed, Run&& run) {
  auto run_if_it_covers = [&](auto features) {
    bool const covers = pyflash::covers(features.value, needed);
    if (covers) {
      run(features);
    }
    return covers;
  };
  return (run_if_it_covers(std::integral_constant<Features, kBuilt>{}) || ...);
}

}  // namespace pyflash
