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
#include "cute_kernels/ops.h"

namespace pyflash {
namespace {

std::mutex tables_mutex;
std::shared_ptr<TunedTables const> tables = std::make_shared<TunedTables const>();
std::atomic<uint64_t> generation = 1;

[[noreturn]] void refuse_line(std::string const& line) {
  refuse("tuned tables: '", line, "' is not understood: expected a line as in host/tuned.h");
}

// The config behind the bar; std::nullopt: this version does not know it.
std::optional<ConfigOf<Forward>> config_in(std::string const& line) {
  size_t const bar = line.find(" | ");
  AnyConfig config;
  try {
    config = parse_short_form(line.substr(bar + 3));
  } catch (std::runtime_error const&) {
    return std::nullopt;
  }
  auto const found = config_of<Forward>(config);
  require(found.has_value(), "tuned tables: '", line,
          "' names a config of another op: expected one of ", Forward::kName);
  return found;
}

// Fails for a range whose ends are no extents, or the wrong way round.
std::istream& operator>>(std::istream& in, Range& range) {
  if (in >> range.first >> range.last && !(0 <= range.first && range.first <= range.last)) {
    in.setstate(std::ios::failbit);
  }
  return in;
}

void read_choice(std::istringstream& words, std::string const& line, TunedTable& table) {
  int dtype = 0;
  std::string features;
  TunedChoice choice{};
  words >> dtype >> choice.d_head >> features >> choice.packed >> choice.pairs >> choice.rows >>
      choice.keys >> choice.num_splits;
  choice.dtype = static_cast<DType>(dtype);
  if (!words || choice.d_head <= 0 || choice.num_splits < 0 || choice.num_splits > kMaxSplits ||
      (choice.dtype != DType::FP16 && choice.dtype != DType::BF16)) {
    refuse_line(line);
  }
  choice.features = parse_features<ForwardFeatures>(features);
  if (auto const config = config_in(line)) {
    choice.config = *config;
    table.choices.push_back(choice);
  }
}

void read_costs(std::istringstream& words, std::string const& line, TunedTable& table) {
  std::string kind;
  TunedCosts row{};
  Costs& costs = row.costs;
  words >> kind;
  for (auto const cost : kCosts) {
    words >> costs.*cost;
  }
  constexpr ProblemKind kKinds[] = {ProblemKind::kMany, ProblemKind::kFew};
  auto const known = std::find_if(std::begin(kKinds), std::end(kKinds),
                                  [&](ProblemKind k) { return kind == name(k); });
  if (!words || known == std::end(kKinds) ||
      std::any_of(std::begin(kCosts), std::end(kCosts),
                  [&](auto const cost) { return !(costs.*cost >= 0); })) {
    refuse_line(line);
  }
  row.kind = *known;
  if (auto const config = config_in(line)) {
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
      if (!words || table.sm_arch <= 0 || table.n_sms <= 0) {
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

}  // namespace

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

}  // namespace pyflash
