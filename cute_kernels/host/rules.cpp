#include "cute_kernels/host/rules.h"

#include <algorithm>
#include <utility>

#include "cute_kernels/host/splits.h"

namespace pyflash {
namespace {

// A candidate as rules 1 to 4 see it.
struct Ranked {
  Candidate const* candidate;
  TileShape shape;
  int64_t n_ctas;  // of one pass
  bool is_preferred;
};

// The rank of configs that have none: UNRANKED in pyflash/config/sets.py.
constexpr int kUnranked = 1'000'000;

std::vector<Ranked> in_order_of_rank(Contenders const& contenders, Problem const& problem) {
  std::vector<Ranked> ranked;
  for (size_t const i : contenders.candidates.by_rank) {
    if (contenders.accepts[i]) {
      Candidate const& candidate = contenders.candidates.all[i];
      TileShape const& shape = candidate.kernel.row->shape;
      ranked.push_back({&candidate, shape, tiling_of(problem, shape).n_ctas, true});
    }
  }
  auto const is_unranked = [](Ranked const& one) {
    return one.candidate->kernel.row->rank >= kUnranked;
  };
  if (!is_unranked(ranked.front())) {
    std::erase_if(ranked, is_unranked);
  }
  auto const family = [](Ranked const& one) { return one.candidate->kernel.row->config.index(); };
  for (Ranked& one : ranked) {
    one.is_preferred = family(one) == family(ranked.front());
  }
  return ranked;
}

bool has_fewer_rows(Ranked const& a, Ranked const& b) {
  return std::pair(a.shape.packs_heads, a.shape.B_r) < std::pair(b.shape.packs_heads, b.shape.B_r);
}

Choice choose_by_rank(Contenders const& contenders, Problem const& problem, int n_sms) {
  auto const& params = problem.params;
  std::vector<Ranked> ranked = in_order_of_rank(contenders, problem);
  int64_t const n_rows = params.q_sequences().longest;
  auto const first_if = [&](auto&& suits) -> Candidate const* {
    auto const found = std::find_if(ranked.begin(), ranked.end(), suits);
    return found == ranked.end() ? nullptr : found->candidate;
  };
  auto const* const packing = first_if([&](Ranked const& one) {
    return one.shape.packs_heads &&
           n_rows * params.heads <= int64_t(one.shape.B_r) * params.heads_kv;
  });
  if (packing) {
    return {.rule = 1, .candidate = *packing};
  }
  Ranked const smallest = *std::min_element(ranked.begin(), ranked.end(), has_fewer_rows);
  if (n_rows <= smallest.shape.B_r) {
    return {.rule = 1, .candidate = *smallest.candidate};
  }
  std::erase_if(ranked, [](Ranked const& one) { return !one.is_preferred; });
  auto const filling = std::find_if(ranked.begin(), ranked.end(), [&](Ranked const& one) {
    return !one.shape.packs_heads && one.n_ctas >= n_sms;
  });
  if (filling == ranked.end()) {
    auto const fewest = std::min_element(ranked.begin(), ranked.end(), has_fewer_rows);
    return {.rule = 4, .candidate = *fewest->candidate};
  }
  auto const* const with_fewer_rows = first_if([&](Ranked const& one) {
    return !one.shape.packs_heads && one.shape.B_r < filling->shape.B_r &&
           one.n_ctas == filling->n_ctas;
  });
  return with_fewer_rows ? Choice{.rule = 3, .candidate = *with_fewer_rows}
                         : Choice{.rule = 2, .candidate = *filling->candidate};
}

// The candidate with the least expected time; none, unless the costs include those of `by_rank`, which rules 1 to 4 took.
CostedChoice least_of_all(Contenders const& contenders, Problem const& problem, Gpu const& gpu,
                          Candidate const& by_rank) {
  CostedChoice best{};
  bool is_known = false;
  for (PricedCandidate const& priced : contenders.candidates.priced) {
    if (priced.kind != problem.kind() || !contenders.accepts[priced.index]) {
      continue;
    }
    GridShape const& shape = priced.shape;
    is_known = is_known || contenders.candidates.all[priced.index].kernel.row == by_rank.kernel.row;
    Splits const splits = splits_of(problem, shape, shape.ctas_per_sm, gpu.n_sms);
    double const time = expected_time(shape, priced.costs, problem, gpu.n_sms, splits.number);
    if (best.candidate == nullptr || time < best.time) {
      best.candidate = &priced;
      best.time = time;
    }
  }
  return is_known ? best : CostedChoice{};
}

// The same from what is known, where every candidate accepts the problem.
CostedChoice least_expected(Contenders const& contenders, Problem const& problem, Gpu const& gpu,
                            Candidate const& by_rank) {
  Candidates const& candidates = contenders.candidates;
  bool const all_accept = std::none_of(
      candidates.priced.begin(), candidates.priced.end(), [&](PricedCandidate const& priced) {
        return priced.kind == problem.kind() && !contenders.accepts[priced.index];
      });
  auto const& params = problem.params;
  Sequences const q = params.q_sequences(), k = params.kv().sequences;
  CostedSize const size{params.batch, params.heads, params.heads_kv, q.longest,         k.longest,
                        q.total,      k.total,      params.mask(),   problem.num_splits};
  if (CostedChoice const* const known = all_accept ? candidates.find_known(size) : nullptr) {
    return *known;
  }
  CostedChoice found = least_of_all(contenders, problem, gpu, by_rank);
  found.size = size;
  if (all_accept) {
    candidates.keep(found);
  }
  return found;
}

}  // namespace

Choice choose(Contenders const& contenders, Problem const& problem, Gpu const& gpu) {
  std::vector<Candidate> const& all = contenders.candidates.all;
  ProblemSize const size = problem.size();
  for (auto const& [index, choice, table] : contenders.candidates.choices) {
    if (choice->holds_for(size) && contenders.accepts[index]) {
      return {.rule = 5, .candidate = all[index], .table = table, .num_splits = choice->num_splits};
    }
  }
  Choice const by_rank = choose_by_rank(contenders, problem, gpu.n_sms);
  CostedChoice const least = least_expected(contenders, problem, gpu, by_rank.candidate);
  if (least.candidate == nullptr) {
    return by_rank;
  }
  return {.rule = 6,
          .candidate = all[least.candidate->index],
          .table = least.candidate->table,
          .expected_time = least.time};
}

}  // namespace pyflash
