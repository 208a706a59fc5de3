// Compares cute_kernels/common/divisor.h with the division of integers. Prints the number of cases, or the first that differs.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "cute_kernels/common/divisor.h"

namespace {

constexpr int64_t kLargest = (int64_t(1) << 31) - 1;

int n_cases = 0;

void require(int divisor, int64_t dividend) {
  if (dividend < 0 || dividend > kLargest) {
    return;
  }
  int quotient = 0;
  int remainder = 0;
  pyflash::Divisor const by(divisor);
  by(quotient, remainder, int(dividend));
  if (quotient != dividend / divisor || remainder != dividend % divisor) {
    std::printf("%lld / %d is not %d, %d\n", (long long)dividend, divisor, quotient, remainder);
    std::exit(1);
  }
  ++n_cases;
}

}  // namespace

int main() {
  std::mt19937_64 random(1);
  auto const number = [&] { return int64_t(random() & uint64_t(kLargest)); };
  auto const check = [&](int64_t divisor) {
    if (divisor < 1 || divisor > kLargest) {
      return;
    }
    for (int i = 0; i < 40; ++i) {
      int64_t const multiple = number() / divisor * divisor;
      for (int64_t dividend : {multiple - 1, multiple, multiple + 1, number()}) {
        require(int(divisor), dividend);
      }
    }
    for (int64_t dividend : {int64_t(0), divisor - 1, divisor, kLargest - 1, kLargest}) {
      require(int(divisor), dividend);
    }
  };
  for (int divisor = 1; divisor <= 4096; ++divisor) {
    check(divisor);
  }
  for (int bit = 12; bit < 31; ++bit) {
    for (int by = -1; by <= 1; ++by) {
      check((int64_t(1) << bit) + by);
    }
  }
  for (int i = 0; i < 4096; ++i) {
    check(number());
  }
  std::printf("%d\n", n_cases);
}
