// For each number of SMs that is given: for one CTA and for two to an SM, the clusters of 1, 2, ... 16 CTAs that run at a time.
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "cute_kernels/host/splits.h"

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    for (int const ctas_per_sm : {1, 2}) {
      for (int cluster = 1; cluster <= 16; ++cluster) {
        auto const n = pyflash::clusters_that_fit(cluster, ctas_per_sm, std::atoi(argv[i]));
        std::printf("%lld%c", static_cast<long long>(n), cluster < 16 ? ' ' : '\n');
      }
    }
  }
}
