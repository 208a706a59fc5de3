#include "cute_kernels/host/select.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cute_kernels/common/clusters.h"
#include "cute_kernels/host/contenders.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/names.h"

namespace pyflash {
namespace {

constexpr char const* kNamed = "it was named";

}  // namespace

ForwardFeatures features_needed(Problem const& problem, std::string_view named) {
  int const d_head =
      std::visit([](auto const& c) { return c.d_head; }, named_config(named, problem));
  return features_needed(problem.params, d_head);
}

std::string GpuSelection::reason() const {
  auto const& [n_row_blocks, n_ctas, n_key_blocks] = splits.tiling;
  auto const passes = splits.n_shares > 0 ? sentence("equal shares for ", splits.n_shares, " CTAs")
                      : splits.number == 1
                          ? std::string("one pass")
                          : sentence(splits.number, " splits, ", n_ctas * splits.number, " CTAs");
  auto const asked = sentence(
      "; its ", n_key_blocks, " blocks of keys in ", passes,
      splits_asked_for ? ", as asked for" : "",
      lists_tiles ? "; its tiles in a list that the device makes" : "",
      of_few ? sentence("; sequences of at most ", few_rows, " queries by ",
                        of_few->row->short_form, " beside it, in ", few_shares, " equal shares")
             : "");
  if (n_candidates == 0) {
    return kNamed + asked;
  }
  ConfigMapRow<Forward> const& row = *choice.candidate.kernel.row;
  auto const candidates = sentence("of ", n_candidates, " configs built for ", name(row.dtype),
                                   " with d_head ", row.d_head, " that run on sm_", gpu.sm_arch);
  auto const chosen = sentence("rank ", row.rank, ", ", n_ctas, " CTAs", asked, passed_over);
  auto const by_table = [&] { return sentence("the table ", choice.table->name, ": ", chosen); };
  switch (choice.rule) {
    case 1:
      return sentence(candidates, " the first in rank of those with the smallest B_r, which holds ",
                      "all queries: ", chosen);
    case 2:
      return sentence(candidates, " the first in rank whose grid fills the ", gpu.n_sms,
                      " SMs: ", chosen);
    case 3:
      return sentence(
          candidates, " the first in rank whose grid fills the ", gpu.n_sms,
          " SMs with as few CTAs as a larger B_r, of which more rows would be idle: ", chosen);
    case 4:
      return sentence(candidates, " none has a grid that fills the ", gpu.n_sms,
                      " SMs; the first in rank of those with the smallest B_r",
                      " in its family: ", chosen);
    case 5:
      return sentence(candidates, " the fastest measured for this class of problems, by ",
                      by_table());
    default:
      return sentence(candidates, " the least expected time, ", std::llround(choice.expected_time),
                      " us, by the costs in ", by_table());
  }
}

Forward::Params fitted(Forward::Params params, ConfigMapRow<Forward> const& row,
                       Splits const& splits) {
  if (splits.n_shares > 0) {
    share_keys(params, row.shape, splits.n_shares);
    return params;
  }
  params.num_splits = splits.number;
  params.cluster = splits.cluster;
  Forward::Params listed = params;
  list_uneven_tiles(listed, row.shape);
  return covers(row, features_needed(listed, row.d_head)) ? listed : params;
}

Forward::Params params_of_few(Forward::Params params, ConfigMapRow<Forward> const& row, int n_rows,
                              int n_shares) {
  Sequences q = params.q_sequences();
  q.longest = std::min(q.longest, n_rows);
  params.set_q_sequences(q);
  share_keys(params, row.shape, n_shares);
  params.runs_beside = true;
  params.merges_shares = false;
  return params;
}

Forward::Params params_of_many(GpuSelection const& selection, Forward::Params const& problem,
                               Forward::Params const& few) {
  auto const& [kernel, ctas_per_sm] = selection.choice.candidate;
  TileShape const& shape = kernel.row->shape;
  Forward::Params params = fitted(problem, *kernel.row, selection.splits);
  params.least_listed_rows = selection.few_rows + 1;
  // A listed block waits for the tensor cores; one of few rows for memory, and counts as one of so many rows.
  constexpr int kRowsOfFew = 72;  // docs/experiments/2026-11-uneven.md
  params.shares_beside = few.share_listing();
  params.beside = {.list = reinterpret_cast<int*>(few.share_list),
                   .cost = kRowsOfFew * few.share_keys,
                   .cost_of_block = shape.B_r * shape.B_c,
                   .heads = shape.packs_heads ? params.heads_kv : params.heads,
                   .n_ctas = ctas_per_sm * selection.gpu.n_sms};
  return params;
}

namespace {

GpuSelection with_splits(GpuSelection selection, Problem const& problem) {
  auto const& row = *selection.choice.candidate.kernel.row;
  selection.lists_tiles = fitted(problem.params, row, selection.splits).has_tile_list();
  return selection;
}

// Whether most sequences may have so few rows, beside longer ones, as far as the host knows.
bool are_mostly_few(Forward::Params const& params, int n_rows, int n_sms) {
  Sequences const q = params.q_sequences(), k = params.kv().sequences;
  int64_t const batch = params.batch;
  if (!q.is_packed() || batch <= 1 || q.longest <= n_rows) {
    return false;
  }
  if (q.total - q.longest <= (batch - 1) * n_rows) {
    return true;
  }
  // Decodes beside several chunks: if these are as long as the longest, they are a quarter of the batch at most. Others may have
  // the same sums. For these a second kernel does nothing, and takes little beside the keys that there have to be.
  constexpr int kOfBatch = 4, kKeysOfQuery = 4;
  constexpr int64_t kKeysOfSm = 4000;  // of a head
  int64_t const n_keys = k.is_packed() ? k.total : batch * k.longest;
  int64_t const n_chunks = ceil_div(q.total - batch, int64_t(q.longest) - 1);
  return kOfBatch * n_chunks <= batch && n_keys >= int64_t(kKeysOfQuery) * q.total &&
         n_keys * params.heads_kv >= kKeysOfSm * n_sms;
}

// What runs the sequences of few rows.
struct KernelOfFew {
  Kernel<Forward> kernel;
  int n_rows;
  int n_shares;
};

// Where most sequences may have so few rows that a kernel is built whose tiles are for these, and that shares keys equally.
std::optional<KernelOfFew> kernel_of_few(Problem const& problem, Contenders const& contenders,
                                         int n_sms) {
  // CTAs that run at a time have so many: what the other kernel leaves no room for follows when some have ended.
  constexpr int kSharesOfCta = 2;
  auto const& params = problem.params;
  if (problem.num_splits != 0) {
    return std::nullopt;
  }
  for (auto const& [kernel, ctas_per_sm] : contenders.candidates.all) {
    TileShape const& shape = kernel.row->shape;
    int const n_rows = shape.n_queries(params);
    int const n_shares = kSharesOfCta * ctas_per_sm * n_sms;
    if (!shape.packs_heads || !are_mostly_few(params, n_rows, n_sms)) {
      continue;
    }
    Forward::Params const few = params_of_few(params, *kernel.row, n_rows, n_shares);
    if (covers(*kernel.row, features_needed(few, kernel.row->d_head)) &&
        kernel.refuses(few) == nullptr) {
      return KernelOfFew{kernel, n_rows, n_shares};
    }
  }
  return std::nullopt;
}

// The problem of the longest sequence alone.
Problem of_longest(Problem problem) {
  auto& params = problem.params;
  params.batch = 1;
  Sequences q = params.q_sequences();
  q.total = q.longest;
  params.set_q_sequences(q);
  KvSource kv = params.kv();
  kv.sequences.total = kv.sequences.is_packed() ? kv.sequences.longest : 0;
  params.set_kv(kv);
  return problem;
}

// Whether equal shares pay for what they cost, where the device alone knows how long the sequences are. fit: with shares.
bool shares_pay(Forward::Params const& fit, Gpu const& gpu) {
  // Fewer tiles have many parts each, which few CTAs merge; of long sequences that is a small part of the time:
  // docs/experiments/2026-11-uneven.md.
  constexpr int kFewestTiles = 48, kFewestKeys = 512;
  constexpr int64_t kKeysOfSmMerged = 3500;
  constexpr int64_t kKeysOfSm = 25000;  // about: docs/experiments/2026-11-shares.md
  int64_t const longest = fit.kv().sequences.longest;
  int64_t const n_tiles = int64_t(fit.batch) * fit.share_heads;
  int64_t const fewest_keys = (fit.merges_shares ? kKeysOfSmMerged : kKeysOfSm) * gpu.n_sms;
  return fit.batch <= ShareListStorage::kChunk &&
         ((fit.merges_shares && n_tiles >= kFewestTiles && longest >= kFewestKeys) ||
          n_tiles * longest >= fewest_keys);
}

// The problem with equal shares of its keys, where these pay. nullopt elsewhere, and where no kernel runs it so.
std::optional<Problem> with_shares(Problem const& problem, Gpu const& gpu) {
  auto const& params = problem.params;
  if (problem.num_splits != 0 || params.pages.table == nullptr || params.batch == 1) {
    return std::nullopt;
  }
  Problem shared = problem;
  shared.num_splits = kSplitsByLength;
  shared.params.n_shares = 1;  // how many there are follows from the config
  CandidatesKey const key = key_of(shared, gpu);
  auto const runs = [&](Candidate const& candidate) {
    auto const& [kernel, ctas_per_sm] = candidate;
    // NOTE: a kernel with more features than it needs takes longer than shares save.
    auto const needed = in_config(key.features, key.d_head, kernel.row->d_head);
    auto const& built = kernel.row->features;
    Forward::Params fit = shared.params;
    share_keys(fit, kernel.row->shape, ctas_per_sm * gpu.n_sms);
    return kernel.refuses(shared.params) == nullptr && shares_pay(fit, gpu) &&
           std::find(built.begin(), built.end(), needed) != built.end();
  };
  auto const& candidates = candidates_for(key).all;
  return std::any_of(candidates.begin(), candidates.end(), runs) ? std::optional(shared)
                                                                 : std::nullopt;
}

GpuSelection select_with_splits(Problem const& problem, Gpu const& gpu, bool splits_asked_for) {
  Contenders const contenders = contenders_for(problem, gpu);
  auto const selection_for = [&](Problem const& chosen_for) {
    Choice const choice = choose(contenders, chosen_for, gpu);
    auto const& [kernel, ctas_per_sm] = choice.candidate;
    return with_splits(
        {.choice = choice,
         .splits = splits_of(problem, kernel.row->shape, ctas_per_sm, gpu.n_sms, choice.num_splits),
         .gpu = gpu,
         .splits_asked_for = splits_asked_for,
         .n_candidates = static_cast<int>(contenders.candidates.all.size()),
         .passed_over = contenders.passed_over},
        problem);
  };
  if (auto const few = kernel_of_few(problem, contenders, gpu.n_sms)) {
    // Who runs the others needs a list of tiles, in which these are not.
    GpuSelection of_others = selection_for(of_longest(problem));
    int const B_r = of_others.choice.candidate.kernel.row->shape.B_r;
    if (of_others.lists_tiles && of_others.splits.number == 1 && few->kernel.row->shape.B_r < B_r) {
      of_others.of_few = few->kernel;
      of_others.few_rows = few->n_rows;
      of_others.few_shares = few->n_shares;
      return of_others;
    }
  }
  return selection_for(problem);
}

}  // namespace

GpuSelection select_on_gpu(Problem const& problem, Gpu const& gpu) {
  std::optional<Problem> const shared = with_shares(problem, gpu);
  return select_with_splits(shared ? *shared : problem, gpu, problem.num_splits != 0);
}

GpuSelection named_on_gpu(Problem const& problem, Gpu const& gpu, std::string_view named) {
  Candidate const candidate = named_candidate(named, problem, gpu);
  return with_splits(
      {.choice = {.candidate = candidate},
       .splits = splits_of(problem, candidate.kernel.row->shape, candidate.ctas_per_sm, gpu.n_sms),
       .gpu = gpu,
       .splits_asked_for = problem.num_splits != 0},
      problem);
}

CpuSelection named_on_cpu(Problem const& problem, std::string_view named) {
  return {named_config(named, problem), kNamed};
}

CpuSelection select_on_cpu(Problem const& problem) {
  CandidatesKey key = key_of(problem, Gpu{});
  key.features.equal_shares = key.features.fixed_splits = false;  // in one pass there are none
  if (Candidates const& candidates = candidates_for(key); !candidates.all.empty()) {
    return {
        candidates.all.front().kernel.row->config,
        "the first in rank of those built for this dtype and d_head; on the CPU any would run, in "
        "one pass"};
  }
  ConfigOf<Forward> const* const fallback = fallback_config(key);
  require(fallback, "no config is for ", name(key.dtype), " with d_head ", key.d_head);
  return {*fallback,
          "the default on the CPU, in one pass: no config is built for this dtype and d_head"};
}

}  // namespace pyflash
