// What the features of every op have in common. They are a struct of bools, all false by default, with kMembers, a list of
// its members, each with a `name`, as Python calls it, and a `value`, the pointer to the member.
#pragma once

#include <iterator>

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

// Whether a kernel with these features runs a problem that needs those.
template <class Features>
constexpr bool covers(Features const& features, Features const& needed) {
  for (auto const& member : Features::kMembers) {
    if (needed.*member.value && !(features.*member.value)) {
      return false;
    }
  }
  return true;
}

}  // namespace pyflash
