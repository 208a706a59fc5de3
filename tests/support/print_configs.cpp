// Reads short forms, one a line; prints the fields of each config, and its short form again.
#include <iostream>

#include "cute_kernels/host/short_form.h"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    auto const c = pyflash::parse_short_form(line);
    std::cout << int(c.dtype);
    for (int field :
         {c.d_head, c.B_r, c.B_c, c.n_warps, int(c.async_copy), int(c.eager_load_blocks),
          int(c.swizzled), c.Q_mma_load_K_tiles, c.K_mma_load_K_tiles, c.V_mma_load_K_tiles,
          int(c.mma_double_buffer_loads), int(c.optimized_softmax)}) {
      std::cout << " " << field;
    }
    std::cout << "\t" << pyflash::short_form(c) << "\n";
  }
}
