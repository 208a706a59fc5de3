// Reads short forms, one a line; prints the fields of each config, and its short form again.
#include <iostream>

#include "cute_kernels/host/short_form.h"

using namespace pyflash::description;

template <class C, class E>
void print(C const& config, Enum<C, E> const& entry) {
  std::cout << int(config.*entry.field) << " ";
}
template <class C>
void print(C const& config, Int<C> const& entry) {
  std::cout << config.*entry.field << " ";
}
template <class C>
void print(C const& config, Flag<C> const& word) {
  std::cout << config.*word.field << " ";
}
template <class C, size_t N>
void print(C const& config, Number<C, N> const& word) {
  for (auto const& value : word.values) {
    print(config, value);
  }
}

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    auto const config = pyflash::parse_short_form(line);
    std::visit(
        [](auto const& c) {
          using Description = ConfigDescription<std::decay_t<decltype(c)>>;
          auto const fields = std::tuple_cat(Description::tile, Description::words);
          std::apply([&](auto const&... entries) { (print(c, entries), ...); }, fields);
        },
        config);
    std::cout << "\t" << pyflash::short_form(config) << "\n";
  }
}
