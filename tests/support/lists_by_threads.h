// What the programs that print lists share: lengths of sequences from the input, and a list that several threads make.
#pragma once

#include <atomic>
#include <barrier>
#include <iostream>
#include <iterator>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "cute_kernels/common/sequence.h"

namespace pyflash {

struct OneOfMany {
  int number;
  int n_threads;
  std::barrier<>* barrier;

  int index() const { return number; }
  int count() const { return n_threads; }
  void sync() const { barrier->arrive_and_wait(); }
  int add(int& value, int n) const { return std::atomic_ref(value).fetch_add(n); }
};

struct Lengths {
  std::vector<int> all;
  std::vector<int> starts{0};

  explicit Lengths(int batch) : all(batch) {
    for (int& length : all) {
      std::cin >> length;
    }
    std::inclusive_scan(all.begin(), all.end(), std::back_inserter(starts));
  }

  Sequences packed(int longest) const {
    return Sequences::packed(starts.data(), longest, starts.back());
  }
};

// A list that threads make, each by write(list, shared, thread); prints its size, or -1 where they wrote behind it.
template <class Shared, class Write>
std::vector<int> print_size_of_list(int size, int n_threads, Write const& write) {
  std::vector<int> list(size + 2, -7);  // NOTE: not zeros: a list is made where another was.
  auto const shared = std::make_unique<Shared>();
  std::barrier barrier(n_threads);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < n_threads; ++i) {
      threads.emplace_back(
          [&, i] { write(list.data(), *shared, OneOfMany{i, n_threads, &barrier}); });
    }
  }
  bool const is_inside = list[size] == -7 && list[size + 1] == -7;
  std::cout << (is_inside ? size : -1);
  return list;
}

}  // namespace pyflash
