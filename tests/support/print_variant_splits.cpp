// For problems of a batch, queries, heads, heads of K and V, keys, a d_head and the rows and keys of a tile: the number of splits with
// a variant and the CTAs of a cluster, on an H200 with two CTAs to an SM. Then the same of that number where a call names it.
#include <cstdio>

#include "cute_kernels/host/splits.h"

int main() {
  constexpr int kSms = 132;
  int batch, n_queries, heads, heads_kv, n_keys, d_head, B_r, B_c;
  while (std::scanf("%d %d %d %d %d %d %d %d", &batch, &n_queries, &heads, &heads_kv, &n_keys,
                    &d_head, &B_r, &B_c) == 8) {
    pyflash::Problem problem{};
    auto& params = problem.params;
    params.batch = batch;
    params.heads = heads;
    params.d_head = d_head;
    params.set_mask({});
    params.set_q_sequences(pyflash::Sequences::padded(n_queries));
    params.set_kv({.sequences = pyflash::Sequences::padded(n_keys), .heads = heads_kv});
    pyflash::TileShape const shape{.B_r = B_r, .B_c = B_c, .packs_heads = true, .max_cluster = 16};
    auto const chosen = pyflash::splits_with_variant(problem, shape, 2, kSms);
    problem.num_splits = chosen.number;
    auto const named = pyflash::splits_with_variant(problem, shape, 2, kSms);
    std::printf("%d %d %d %d\n", chosen.number, chosen.cluster, named.number, named.cluster);
  }
}
