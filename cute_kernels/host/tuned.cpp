#include "cute_kernels/host/tuned.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <sstream>
#include <utility>

#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/names.h"
#include "cute_kernels/host/short_form.h"
#include "cute_kernels/host/splits.h"

namespace pyflash {
namespace {

constexpr int kFewRows = 64;

std::mutex tables_mutex;
std::shared_ptr<TunedTables const> tables = std::make_shared<TunedTables const>();
std::atomic<uint64_t> generation = 1;

[[noreturn]] void refuse_line(std::string const& line) {
  refuse("tuned tables: '", line, "' is not understood: expected a line as in host/tuned.h");
}

// The config behind the bar; std::nullopt: this version does not know it.
std::optional<AnyConfig> config_of(std::string const& line) {
  size_t const bar = line.find(" | ");
  try {
    return parse_short_form(line.substr(bar + 3));
  } catch (std::runtime_error const&) {
    return std::nullopt;
  }
}

std::istream& operator>>(std::istream& in, Range& range) { return in >> range.first >> range.last; }

void read_choice(std::istringstream& words, std::string const& line, TunedTable& table) {
  int dtype = 0;
  std::string features;
  TunedChoice choice{};
  words >> dtype >> choice.d_head >> features >> choice.packed >> choice.pairs >> choice.rows >>
      choice.keys >> choice.num_splits;
  if (!words || choice.num_splits < 0 || choice.num_splits > kMaxSplits) {
    refuse_line(line);
  }
  choice.dtype = static_cast<DType>(dtype);
  choice.features = parse_features(features);
  if (auto const config = config_of(line)) {
    choice.config = *config;
    table.choices.push_back(choice);
  }
}

void read_costs(std::istringstream& words, std::string const& line, TunedTable& table) {
  std::string kind;
  TunedCosts row{};
  Costs& costs = row.costs;
  words >> kind >> costs.launch >> costs.tile >> costs.step >> costs.share;
  constexpr ProblemKind kKinds[] = {ProblemKind::kFull, ProblemKind::kMasked, ProblemKind::kFew};
  auto const known = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](ProblemKind k) { return kind == name(k); });
  if (!words || known == std::end(kKinds) ||
      std::min({costs.launch, costs.tile, costs.step, costs.share}) < 0) {
    refuse_line(line);
  }
  row.kind = *known;
  if (auto const config = config_of(line)) {
    row.config = *config;
    table.costs.push_back(row);
  }
}

TunedTables read_tables(std::string_view text) {
  TunedTables result;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (line.find(" | ") == std::string::npos) {
      refuse_line(line);
    }
    if (what == "table") {
      TunedTable table{.name = line.substr(line.find(" | ") + 3)};
      words >> table.sm_arch >> table.n_sms;
      if (!words) {
        refuse_line(line);
      }
      result.push_back(std::move(table));
    } else if (what == "choice" && !result.empty()) {
      read_choice(words, line, result.back());
    } else if (what == "costs" && !result.empty()) {
      read_costs(words, line, result.back());
    } else {
      refuse_line(line);
    }
  }
  return result;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool has_window(ForwardParams const& params) {
  return params.window_left < kNoWindow || params.window_right < kNoWindow;
}

// Blocks of keys that the Q block of these rows attends.
int64_t count_steps(ForwardParams const& params, int64_t first_row, int B_r, int B_c) {
  int64_t const keys = params.seqlen_k;
  int64_t const offset = keys - params.seqlen_q;
  int64_t const last_row = std::min<int64_t>(first_row + B_r, params.seqlen_q) - 1;
  int64_t begin = 0, end = keys;
  if (params.window_left < kNoWindow) {
    begin = std::clamp<int64_t>(first_row + offset - params.window_left, 0, keys);
  }
  if (params.window_right < kNoWindow) {
    end = std::clamp<int64_t>(last_row + offset + params.window_right + 1, 0, keys);
  }
  return std::max<int64_t>(0, ceil_div(end, B_c) - begin / B_c);
}

struct Steps {
  double mean;
  int64_t most;
};

// Of a CTA. The mean is that of at most 8 Q blocks.
Steps steps_of(ForwardParams const& params, int64_t n_blocks, int B_r, int B_c) {
  if (!has_window(params)) {
    int64_t const n = ceil_div(params.seqlen_k, B_c);
    return {static_cast<double>(n), n};
  }
  int64_t const n_sampled = std::min<int64_t>(n_blocks, 8);
  int64_t total = 0, most = 0;
  for (int64_t i = 0; i < n_sampled; ++i) {
    int64_t const block = (2 * i + 1) * n_blocks / (2 * n_sampled);
    int64_t const n = count_steps(params, block * B_r, B_r, B_c);
    total += n;
    most = std::max(most, n);
  }
  most = std::max(most, count_steps(params, (n_blocks - 1) * B_r, B_r, B_c));
  return {static_cast<double>(total) / static_cast<double>(std::max<int64_t>(n_sampled, 1)), most};
}

}  // namespace

ProblemSize size_of(ForwardParams const& params) {
  return {.pairs = int64_t(params.batch) * params.heads,
          .rows = params.seqlen_q,
          .keys = params.seqlen_k,
          .packed = params.total_q > 0};
}

ProblemKind kind_of(ForwardParams const& params) {
  if (params.seqlen_q <= kFewRows) {
    return ProblemKind::kFew;
  }
  return has_window(params) ? ProblemKind::kMasked : ProblemKind::kFull;
}

char const* name(ProblemKind kind) {
  switch (kind) {
    case ProblemKind::kFull:
      return "full";
    case ProblemKind::kMasked:
      return "masked";
    default:
      return "few";
  }
}

int64_t set_tuned_tables(std::string_view text) {
  auto read = std::make_shared<TunedTables const>(read_tables(text));
  int64_t n_rows = 0;
  for (TunedTable const& table : *read) {
    n_rows += static_cast<int64_t>(table.choices.size() + table.costs.size());
  }
  std::lock_guard const lock(tables_mutex);
  tables = std::move(read);
  generation.fetch_add(1, std::memory_order_release);
  return n_rows;
}

std::shared_ptr<TunedTables const> tuned_tables() {
  std::lock_guard const lock(tables_mutex);
  return tables;
}

uint64_t tuned_generation() { return generation.load(std::memory_order_acquire); }

double expected_time(CostedKernel const& kernel, ForwardParams const& params, int n_sms,
                     int num_splits) {
  auto const& [B_r, B_c, ctas_per_sm, costs] = kernel;
  int64_t const n_blocks = ceil_div(params.seqlen_q, B_r);
  int64_t const n_ctas = n_blocks * params.heads * params.batch * num_splits;
  if (n_ctas == 0) {
    return costs.launch;
  }
  Steps const steps = steps_of(params, n_blocks, B_r, B_c);
  auto const cta = [&](double n_steps) { return costs.tile + costs.step * n_steps; };
  auto const slowed = [&](int64_t n_on_sm) {
    return std::max(1.0, static_cast<double>(n_on_sm) * costs.share);
  };
  auto const of_one_sm = [&](int64_t n) {
    return std::min<int64_t>(ceil_div(n, n_sms), ctas_per_sm);
  };
  double const longest = cta(static_cast<double>(ceil_div(steps.most, num_splits)));
  double time = 0;
  if (has_window(params)) {
    double const per_sm = std::max(1.0 / ctas_per_sm, costs.share) / n_sms;
    time = std::max(longest * slowed(of_one_sm(n_ctas)),
                    static_cast<double>(n_ctas) * cta(steps.mean / num_splits) * per_sm);
  } else {
    int64_t const n_slots = int64_t(n_sms) * ctas_per_sm;
    int64_t const n_rest = n_ctas % n_slots;
    time = static_cast<double>(n_ctas / n_slots) * longest * slowed(ctas_per_sm) +
           (n_rest > 0 ? longest * slowed(of_one_sm(n_rest)) : 0);
  }
  int64_t const n_outputs = int64_t(params.heads) * params.batch * params.seqlen_q * params.d_head;
  return costs.launch + time + merge_cost(num_splits, n_outputs);
}

}  // namespace pyflash
