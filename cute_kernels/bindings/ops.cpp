// The ops, as torch sees them: schemas, and implementations on CUDA and on the CPU. Meta, whose extents may be symbolic, is
// in pyflash/op/fake.py.
#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cute_kernels/bindings/append.h"
#include "cute_kernels/bindings/arguments.h"
#include "cute_kernels/bindings/backward.h"
#include "cute_kernels/bindings/forward.h"
#include "cute_kernels/bindings/merge.h"
#include "cute_kernels/bindings/torch_stable.h"
#include "cute_kernels/host/candidates.h"
#include "cute_kernels/host/config_map.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/extents.h"
#include "cute_kernels/host/gradients.h"
#include "cute_kernels/host/grid.h"
#include "cute_kernels/host/made_store.h"
#include "cute_kernels/host/names.h"
#include "cute_kernels/host/select.h"
#include "cute_kernels/host/select_backward.h"
#include "cute_kernels/host/short_form.h"
#include "cute_kernels/host/tuned.h"
#include "cute_kernels/host/variant_call.h"
#include "cute_kernels/host/variant_map.h"

namespace pyflash {
namespace {

// The last refusal of a value in this thread. All exceptions reach Python as RuntimeErrors; pyflash/op/errors.py asks
// which of them are ValueErrors.
thread_local std::string last_refusal_of_thread;

template <void (*kFunction)(StableIValue*, uint64_t, uint64_t)>
void noted(StableIValue* stack, uint64_t n_arguments, uint64_t n_results) {
  try {
    kFunction(stack, n_arguments, n_results);
  } catch (InvalidValue const& refusal) {
    last_refusal_of_thread = refusal.what();
    throw;
  }
}

// Kernels as torch calls them. They take the arguments off the stack and put the results there.
void fwd(StableIValue* stack, uint64_t, uint64_t) { forward(stack, /*packed=*/false); }
void fwd_varlen(StableIValue* stack, uint64_t, uint64_t) { forward(stack, /*packed=*/true); }
void fwd_paged(StableIValue* stack, uint64_t, uint64_t) { forward_paged(stack, /*into=*/false); }
void fwd_paged_out(StableIValue* stack, uint64_t, uint64_t) { forward_paged(stack, /*into=*/true); }
void fwd_variant(StableIValue* stack, uint64_t, uint64_t) { forward_variant(stack); }
void fwd_paged_variant(StableIValue* stack, uint64_t, uint64_t) { forward_paged_variant(stack); }
void schedule_plan(StableIValue* stack, uint64_t, uint64_t) { plan_schedule(stack); }
void schedule_fill(StableIValue* stack, uint64_t, uint64_t) { fill_schedule(stack); }
void rows_appended(StableIValue* stack, uint64_t, uint64_t) { append_rows(stack); }
void slots_found(StableIValue* stack, uint64_t, uint64_t) { find_slots(stack); }
void states_merged(StableIValue* stack, uint64_t, uint64_t) { merge_states(stack); }

void last_refusal(StableIValue* stack, uint64_t, uint64_t) {
  put_results(stack, last_refusal_of_thread);
}

// The short form of the config that a text names.
void parse_config(StableIValue* stack, uint64_t, uint64_t) {
  put_results(stack, short_form(parse_short_form(Arguments(stack).take<std::string>())));
}

void load_kernels(StableIValue* stack, uint64_t, uint64_t) {
  put_results(stack, load_kernel_library(Arguments(stack).take<std::string>()));
}

// As the schema has them, after path and config.
template <class Op>
void load_cubin_of(std::string const& path, ConfigOf<Op> const& config, Arguments& arguments) {
  Cubin<Op> cubin{.path = path, .config = config};
  for (std::string const& text : split(arguments.take<std::string>(), ',')) {
    cubin.features.push_back(parse_features<typename Op::Features>(text));
  }
  cubin.symbols = split(arguments.take<std::string>(), ',');
  require(cubin.symbols.size() == cubin.features.size(), "cubin '", cubin.path, "' has ",
          cubin.symbols.size(), " kernels for ", cubin.features.size(),
          " combinations of features");
  cubin.sm_arch = arguments.take<std::string>();
  for (int* value : {&cubin.n_threads, &cubin.smem_bytes, &cubin.ctas_per_sm, &cubin.rank}) {
    *value = static_cast<int>(arguments.take<int64_t>());
  }
  load_cubin(cubin);
}

// path, config, features and symbols joined by commas, sm_arch, n_threads, smem_bytes, ctas_per_sm, rank.
void load_cubin_file(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  auto const path = arguments.take<std::string>();
  AnyConfig const any = parse_short_form(arguments.take<std::string>());
  visit_op(any, [&]<class Op>(Op, ConfigOf<Op> const& config) {
    load_cubin_of<Op>(path, config, arguments);
  });
}

void library_abi(StableIValue* stack, uint64_t, uint64_t) {
  put_results(stack, kernel_library_abi());
}

void config_map(StableIValue* stack, uint64_t, uint64_t) { put_results(stack, config_map_json()); }

void load_tables(StableIValue* stack, uint64_t, uint64_t) {
  put_results(stack, set_tuned_tables(Arguments(stack).take<std::string>()));
}

// How many bytes a device holds of what variants have made before their kernels, at most.
void keep_made(StableIValue* stack, uint64_t, uint64_t) {
  int64_t const most_bytes = Arguments(stack).take<int64_t>();
  require(most_bytes >= 0, "most_bytes = ", most_bytes, ": expected at least 0");
  made_store().set_most_bytes(most_bytes);
}

void forget_made(StableIValue* stack, uint64_t, uint64_t) {
  made_store().forget(Arguments(stack).take<int64_t>());
}

void held_of_made(StableIValue* stack, uint64_t, uint64_t) {
  MadeStore::Held const held = made_store().held();
  put_results(stack, held.entries, held.bytes);
}

// A problem without data, as the first arguments of an op.
struct Asked {
  explicit Asked(Arguments& arguments)
      : dtype(static_cast<DType>(arguments.take<int64_t>())), packed(arguments.take<bool>()) {
    for (auto const& [name, extent] : kExtents) {
      extents.*extent = arguments.take<int64_t>();
    }
    for (auto const& [name, total] : kTotals) {
      extents.*total = arguments.take<int64_t>();
    }
  }
  Problem problem(Options const& options) const {
    return problem_like(dtype, packed, extents, options);
  }
  Problem problem_as_asked(Options const& options) const {
    return problem_like(dtype, packed, extents, options, pyflash::problem_as_asked);
  }

  DType dtype;
  bool packed;
  Extents extents{};
};

// The class of a problem in tuned tables.
void problem_class(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  Asked const asked(arguments);
  Problem const problem = asked.problem(arguments.take_options());
  ProblemSize const size = problem.size();
  put_results(stack, name(features_needed(problem.params, problem.params.d_head)), size.pairs,
              size.rows, size.keys, std::string(name(problem.kind())));
}

// The features that a problem needs of the kernel of the config that its options name.
void features_of_problem(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  Asked const asked(arguments);
  Options const options = arguments.take_options();
  put_results(stack, name(features_needed(asked.problem(options), options.config)));
}

// The features that a class of problems needs of a kernel of a config.
void features_in_config(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  ForwardFeatures const features = parse_features<ForwardFeatures>(arguments.take<std::string>());
  auto const d_head = static_cast<int>(arguments.take<int64_t>());
  auto const config = parse_short_form_of<Forward>(arguments.take<std::string>());
  int const of_config = std::visit([](auto const& c) { return c.d_head; }, config);
  put_results(stack, name(in_config(features, d_head, of_config)));
}

// What tuned tables expect of a problem with each of several sets of costs, all their values in a row, in microseconds, the
// number of splits by the rule, and the tiles of one pass.
void expect_time(StableIValue* stack, uint64_t, uint64_t) {
  constexpr size_t kSet = std::size(kCosts);
  Arguments arguments(stack);
  Asked const asked(arguments);
  auto const n_sms = static_cast<int>(arguments.take<int64_t>());
  auto const config = parse_short_form_of<Forward>(arguments.take<std::string>());
  GridShape const shape = grid_shape(config, static_cast<int>(arguments.take<int64_t>()));
  auto const values = arguments.take<std::vector<double>>();
  Problem const problem = asked.problem(arguments.take_options());
  require(values.size() % kSet == 0, "costs has ", values.size(), " numbers: expected ", kSet,
          " for each set of costs");
  int const num_splits = splits_of(problem, shape, shape.ctas_per_sm, n_sms).number;
  std::vector<double> microseconds;
  for (size_t first = 0; first < values.size(); first += kSet) {
    Costs costs{};
    for (size_t i = 0; i < kSet; ++i) {
      costs.*kCosts[i] = values[first + i];
    }
    microseconds.push_back(expected_time(shape, costs, problem, n_sms, num_splits));
  }
  put_results(stack, microseconds, int64_t(num_splits),
              make_grid(shape, problem, n_sms, 1).n_tiles);
}

// The config that a call of this problem would run, the number of splits and the reason; sm_arch = 0 stands for the CPU.
void select(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  Asked const asked(arguments);
  Gpu const gpu{.sm_arch = static_cast<int>(arguments.take<int64_t>()),
                .n_sms = static_cast<int>(arguments.take<int64_t>())};
  Options const options = arguments.take_options();
  Problem const problem = asked.problem(options);
  std::string_view const named = options.config;
  if (gpu.sm_arch == 0) {
    CpuSelection const selection =
        named.empty() ? select_on_cpu(problem) : named_on_cpu(problem, named);
    put_results(stack, short_form(any_config(selection.config)), int64_t(1),
                std::string(selection.reason));
    return;
  }
  GpuSelection const selection =
      named.empty() ? select_on_gpu(problem, gpu) : named_on_gpu(problem, gpu, named);
  put_results(stack, std::string(selection.choice.candidate.kernel.row->short_form),
              int64_t(selection.splits.number), selection.reason());
}

// The same of a call with a variant, given its portable text, or of its gradients.
struct AskedWithVariant {
  explicit AskedWithVariant(Arguments& arguments, bool of_gradients)
      : asked(arguments),
        variant(arguments.take<std::string>()),
        summed(of_gradients ? arguments.take<std::vector<int64_t>>() : std::vector<int64_t>{}),
        gpu{.sm_arch = static_cast<int>(arguments.take<int64_t>()),
            .n_sms = static_cast<int>(arguments.take<int64_t>())},
        options(arguments.take_options()) {
    refuse_beside_variant(options);
  }
  Problem problem() const { return asked.problem_as_asked(options); }

  Asked asked;
  std::string variant;
  std::vector<int64_t> summed;  // of gradients: the places of captured tensors that have them
  Gpu gpu;
  Options options;
};

void select_with_variant(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  AskedWithVariant const call(arguments, false);
  Problem const problem = call.problem();
  std::string_view const named = call.options.config;
  if (call.gpu.sm_arch == 0) {
    CpuSelection const selection =
        named.empty() ? select_on_cpu(problem) : named_on_cpu(problem, named);
    put_results(stack, short_form(any_config(selection.config)), int64_t(1),
                std::string(selection.reason));
    return;
  }
  VariantKernel const kernel =
      select_variant(problem, call.gpu, *known_variant(call.variant), named);
  Splits const splits =
      splits_with_variant(problem, kernel.row->row.shape, kernel.ctas_per_sm, call.gpu.n_sms);
  put_results(stack, std::string(kernel.row->row.short_form), int64_t(splits.number),
              std::string(named.empty() ? "the first in rank of the kernels with this variant, of "
                                          "those for so many queries"
                                        : "asked for"));
}

void select_gradients_of_variant(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  AskedWithVariant const call(arguments, true);
  Problem const problem = call.problem();
  BackwardParams params = backward_params(problem);
  params.deterministic = call.options.deterministic;
  GradientKernel const kernel =
      select_gradient(problem.dtype, params, call.gpu, *known_variant(call.variant), call.summed,
                      call.options.config);
  put_results(stack, std::string(kernel.row->row.short_form),
              std::string("the first in rank of the kernels with gradients of this variant"));
}

// The config of op backward that the gradients of this problem are computed with on a GPU, "" for none, and the reason.
void select_backward_config(StableIValue* stack, uint64_t, uint64_t) {
  Arguments arguments(stack);
  Asked const asked(arguments);
  Gpu const gpu{.sm_arch = static_cast<int>(arguments.take<int64_t>()),
                .n_sms = static_cast<int>(arguments.take<int64_t>())};
  Options const options = arguments.take_options();
  Problem const problem = asked.problem_as_asked(options);
  BackwardParams params = backward_params(problem);
  params.deterministic = options.deterministic;
  BackwardSelection const selection = select_backward(problem.dtype, params, gpu, options.config);
  put_results(stack, std::string(selection.kernel ? selection.kernel->row->short_form : ""),
              selection.reason);
}

// inputs: k and v, and what sets sequences apart. separator: "*, " where options go by name alone.
std::string forward_schema(std::string const& name, std::string const& inputs,
                           char const* separator = "*, ") {
  return name + "(Tensor q, " + inputs + ", " + separator + options_schema() +
         ") -> (Tensor out, Tensor lse)";
}

// The schema of an op that takes a problem without data and these arguments.
std::string problem_schema(std::string const& name, std::string const& arguments,
                           std::string const& results) {
  std::string schema = name + "(*, int dtype, bool packed";
  for (auto const& [extent_name, extent] : kExtents) {
    schema += sentence(", int ", extent_name);
  }
  for (auto const& [total_name, total] : kTotals) {
    schema += sentence(", int ", total_name, "=0");
  }
  return schema + ", " + arguments + options_schema() + ") -> (" + results + ")";
}

}  // namespace
}  // namespace pyflash

STABLE_TORCH_LIBRARY(pyflash, m) {
  using namespace pyflash;
  m.def(forward_schema("fwd", "Tensor k, Tensor v").c_str());
  m.def(forward_schema("fwd_varlen",
                       "Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
                       "SymInt max_seqlen_q, SymInt max_seqlen_k")
            .c_str());
  std::string const pages =
      "Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor seqlens_k, "
      "Tensor? cu_seqlens_q=None, SymInt? max_seqlen_q=None, Tensor? k_scale=None, "
      "Tensor? v_scale=None, Tensor? schedule=None";
  m.def(forward_schema("fwd_paged", pages).c_str());
  m.def(("fwd_paged.out(Tensor q, " + pages + ", *, " + options_schema() +
         ", Tensor(a!) out, Tensor(b!) lse) -> ()")
            .c_str());
  std::string const scheduled =
      "SymInt heads, Tensor k_cache, Tensor block_table, Tensor seqlens_k, "
      "Tensor? cu_seqlens_q=None, SymInt max_seqlen_q=1, *, " +
      options_schema();
  m.def(("plan_schedule(" + scheduled + ") -> (str config, int size)").c_str());
  m.def(("fill_schedule(Tensor(a!) schedule, " + scheduled + ") -> ()").c_str());
  std::string const variant = "str text, Tensor[]? tensors, float[]? reals, SymInt[]? integers, ";
  m.def(forward_schema("fwd_paged_variant",
                       "Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor seqlens_k, " +
                           variant + "Tensor? cu_seqlens_q=None, SymInt? max_seqlen_q=None")
            .c_str());
  m.def(forward_schema("fwd_variant",
                       "Tensor k, Tensor v, " + variant +
                           "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, "
                           "SymInt? max_seqlen_q=None, SymInt? max_seqlen_k=None, "
                           "str backward=\"\", int[]? promise=None",
                       /*separator=*/"")  // torch's public autograd takes no tensors by name alone
            .c_str());
  m.def(
      "append_rows(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots) -> "
      "bool");
  m.def(
      "find_slots(Tensor block_table, Tensor seqlens_k, Tensor cu_seqlens_q, int page_size, "
      "int total_q) -> Tensor");
  m.def("merge_states(Tensor[] outs, Tensor[] lses, Tensor(a!) out, Tensor(b!) lse) -> bool");
  m.def("load_kernels(str path) -> int");
  m.def(
      "load_cubin(str path, str config, str features, str symbols, str sm_arch, int n_threads, "
      "int smem_bytes, int ctas_per_sm, int rank) -> ()");
  m.def("kernel_library_abi() -> str");
  m.def("config_map() -> str");
  m.def("keep_made(int most_bytes) -> ()");
  m.def("forget_made(int promise) -> ()");
  m.def("held_of_made() -> (int entries, int bytes)");
  m.def("last_refusal() -> str");
  m.def("parse_config(str text) -> str");
  m.def("load_tables(str text) -> int");
  m.def(
      problem_schema("select", "int sm_arch, int n_sms, ", "str config, int num_splits, str reason")
          .c_str());
  m.def(problem_schema("select_variant", "str text, int sm_arch, int n_sms, ",
                       "str config, int num_splits, str reason")
            .c_str());
  m.def(problem_schema("select_variant_backward",
                       "str text, int[] summed, int sm_arch, int n_sms, ", "str config, str reason")
            .c_str());
  m.def(problem_schema("select_backward", "int sm_arch, int n_sms, ", "str config, str reason")
            .c_str());
  std::string const of_backward =
      "Tensor grad_out, Tensor out, Tensor lse, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, "
      "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k, ";
  m.def(("run_backward(" + of_backward + "*, " + options_schema() +
         ") -> (Tensor dq, Tensor dk, Tensor dv)")
            .c_str());
  m.def(
      ("run_variant_backward(" + of_backward +
       "Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv, str text, Tensor[]? tensors, float[]? reals, "
       "SymInt[]? integers, Tensor(d!)[] sums, int[] summed, int[]? promise=None, *, " +
       options_schema() + ") -> ()")
          .c_str());
  m.def(problem_schema("problem_class", "", "str features, int pairs, int rows, int keys, str kind")
            .c_str());
  m.def(problem_schema("features_needed", "", "str features").c_str());
  m.def(problem_schema("expect_time", "int n_sms, str kernel, int ctas_per_sm, float[] costs, ",
                       "float[] microseconds, int num_splits, int tiles")
            .c_str());
  m.def("features_in_config(str features, int d_head, str config) -> str");
}

STABLE_TORCH_LIBRARY_IMPL(pyflash, CUDA, m) {
  m.impl("fwd", pyflash::noted<pyflash::fwd>);
  m.impl("fwd_varlen", pyflash::noted<pyflash::fwd_varlen>);
  m.impl("run_backward", pyflash::noted<pyflash::run_backward>);
  m.impl("run_variant_backward", pyflash::noted<pyflash::run_variant_backward>);
  m.impl("fwd_paged", pyflash::noted<pyflash::fwd_paged>);
  m.impl("fwd_paged.out", pyflash::noted<pyflash::fwd_paged_out>);
  m.impl("fwd_variant", pyflash::noted<pyflash::fwd_variant>);
  m.impl("fwd_paged_variant", pyflash::noted<pyflash::fwd_paged_variant>);
  m.impl("plan_schedule", pyflash::noted<pyflash::schedule_plan>);
  m.impl("fill_schedule", pyflash::noted<pyflash::schedule_fill>);
  m.impl("append_rows", pyflash::noted<pyflash::rows_appended>);
  m.impl("find_slots", pyflash::noted<pyflash::slots_found>);
  m.impl("merge_states", pyflash::noted<pyflash::states_merged>);
}

STABLE_TORCH_LIBRARY_IMPL(pyflash, CPU, m) {
  m.impl("fwd", pyflash::noted<pyflash::fwd>);
  m.impl("fwd_varlen", pyflash::noted<pyflash::fwd_varlen>);
  m.impl("run_backward", pyflash::noted<pyflash::run_backward>);
  m.impl("fwd_paged", pyflash::noted<pyflash::fwd_paged>);
  m.impl("fwd_paged.out", pyflash::noted<pyflash::fwd_paged_out>);
  m.impl("fwd_variant", pyflash::noted<pyflash::fwd_variant>);
  m.impl("fwd_paged_variant", pyflash::noted<pyflash::fwd_paged_variant>);
  m.impl("plan_schedule", pyflash::noted<pyflash::schedule_plan>);
  m.impl("fill_schedule", pyflash::noted<pyflash::schedule_fill>);
  m.impl("append_rows", pyflash::noted<pyflash::rows_appended>);
  m.impl("find_slots", pyflash::noted<pyflash::slots_found>);
  m.impl("merge_states", pyflash::noted<pyflash::states_merged>);
}

STABLE_TORCH_LIBRARY_IMPL(pyflash, CompositeExplicitAutograd, m) {
  m.impl("load_kernels", pyflash::load_kernels);
  m.impl("load_cubin", pyflash::load_cubin_file);
  m.impl("kernel_library_abi", pyflash::library_abi);
  m.impl("config_map", pyflash::config_map);
  m.impl("keep_made", pyflash::noted<pyflash::keep_made>);
  m.impl("forget_made", pyflash::forget_made);
  m.impl("held_of_made", pyflash::held_of_made);
  m.impl("last_refusal", pyflash::last_refusal);
  m.impl("parse_config", pyflash::noted<pyflash::parse_config>);
  m.impl("load_tables", pyflash::load_tables);
  m.impl("select", pyflash::noted<pyflash::select>);
  m.impl("select_variant", pyflash::noted<pyflash::select_with_variant>);
  m.impl("select_variant_backward", pyflash::noted<pyflash::select_gradients_of_variant>);
  m.impl("select_backward", pyflash::noted<pyflash::select_backward_config>);
  m.impl("problem_class", pyflash::noted<pyflash::problem_class>);
  m.impl("features_needed", pyflash::noted<pyflash::features_of_problem>);
  m.impl("expect_time", pyflash::noted<pyflash::expect_time>);
  m.impl("features_in_config", pyflash::noted<pyflash::features_in_config>);
}
