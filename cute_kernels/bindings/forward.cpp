#include "cute_kernels/bindings/forward.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "cute_kernels/bindings/arguments.h"
#include "cute_kernels/bindings/gpu.h"
#include "cute_kernels/bindings/made_memory.h"
#include "cute_kernels/bindings/tensors.h"
#include "cute_kernels/host/call.h"
#include "cute_kernels/host/cpu_forward.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/launch_tag.h"
#include "cute_kernels/host/select.h"
#include "cute_kernels/host/slices.h"
#include "cute_kernels/host/variant_call.h"
#include "cute_kernels/host/variant_map.h"

namespace pyflash {
namespace {

using torch::stable::Tensor;

struct Outputs {
  Tensor out;  // as q
  Tensor lse;  // (batch, heads, seqlen_q); packed: (heads, total_q)
};

// A tensor that a caller gave for an output.
void check_given(char const* name, Tensor const& given, Tensor const& q,
                 std::vector<int64_t> const& shape, int32_t dtype) {
  TensorView const view = view_of(name, given), of_q = view_of("q", q);
  require(view.device == of_q.device, name, " is on ", view.device, ": expected ", of_q.device,
          ", where q is");
  require(dtype_of(given) == dtype, name, " is ", view.dtype, ": expected ",
          dtype == dtype_of(q) ? of_q.dtype : ElementType::kFloat32);
  bool fits = view.rank == static_cast<int>(shape.size()), contiguous = fits;
  int64_t stride = 1;
  for (int i = view.rank - 1; fits && i >= 0; --i) {
    fits = view.sizes[i] == shape[i];
    contiguous = contiguous && (shape[i] <= 1 || view.strides[i] == stride);
    stride *= std::max<int64_t>(shape[i], 1);
  }
  TensorView const expected{
      .rank = static_cast<int>(shape.size()), .sizes = shape.data(), .dtype = view.dtype};
  require(fits, name, " has shape ", ShapeOf{view}, ": expected ", ShapeOf{expected});
  bool const aligned = reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
  require(contiguous && aligned, name,
          " has strides or an address of other views: expected a contiguous tensor at a multiple "
          "of 16 bytes");
}

// Allocates the outputs, or takes those given, and points the problem at them.
Outputs allocate_outputs(Tensor const& q, Problem& problem, Outputs const* given = nullptr) {
  int32_t const dtype = dtype_of(q), fp32 = aoti_torch_dtype_float32();
  auto const n = q.sizes();
  bool const padded = n.size() == 4;
  if (given != nullptr) {
    auto const [batch, rows, heads] = std::tuple(n[0], n[n.size() - 3], n[n.size() - 2]);
    check_given("out", given->out, q, {n.begin(), n.end()}, dtype);
    check_given("lse", given->lse, q,
                padded ? std::vector{batch, heads, rows} : std::vector{heads, rows}, fp32);
  }
  Outputs outputs = given    ? *given
                    : padded ? Outputs{allocate<4>("out", q, {n[0], n[1], n[2], n[3]}, dtype),
                                       allocate<3>("lse", q, {n[0], n[2], n[1]}, fp32)}
                             : Outputs{allocate<3>("out", q, {n[0], n[1], n[2]}, dtype),
                                       allocate<2>("lse", q, {n[1], n[0]}, fp32)};
  problem.params.o = outputs.out.mutable_data_ptr();
  problem.params.lse = static_cast<float*>(outputs.lse.mutable_data_ptr());
  return outputs;
}

// Points params at a list of shares that was made before, which kernels that find shares themselves do not read. Refuses one of another
// size.
void take_schedule(TensorView const& given, Forward::Params& params) {
  int64_t const size = params.share_listing().size();
  require(given.rank == 1 && given.sizes[0] == size, given.name, " has shape ", ShapeOf{given},
          ": expected (", size, ",), as a schedule of these shapes and this config has");
  params.share_list = static_cast<float*>(const_cast<void*>(given.data));
  params.is_share_list_given = true;
}

// What does not depend on a config.
void check_schedule(TensorView const& given, Device const& device) {
  require(given.device == device, given.name, " is on ", given.device, ": expected ", device,
          ", where q is");
  require(given.dtype == ElementType::kInt32, given.name, " is ", given.dtype, ": expected ",
          ElementType::kInt32);
  require(given.rank == 1 && (given.sizes[0] <= 1 || given.strides[0] == 1) &&
              reinterpret_cast<uintptr_t>(given.data) % 16 == 0,
          given.name, " has shape ", ShapeOf{given},
          ": expected a contiguous dimension at a multiple of 16 bytes");
}

// Two kernels, the second of which does not wait for the first.
void run_beside(GpuSelection const& selection, Forward::Params const& problem, Tensor const& q,
                void* stream) {
  Kernel<Forward> const& of_few = *selection.of_few;
  Forward::Params few =
      params_of_few(problem, *of_few.row, selection.few_rows, selection.few_shares);
  // NOTE: both have their memory until both are in the stream: torch would give the first one's to the second.
  auto const memory_of_few = allocate_workspace<Forward>(q, few);
  Forward::Params many = params_of_many(selection, problem, few);
  auto const memory_of_many = allocate_workspace<Forward>(q, many);
  few.is_share_list_given = true;  // made with the list of tiles
  run(selection.choice.candidate.kernel, many, stream);
  run(of_few, few, stream);
}

Outputs run_on_gpu(Problem& problem, Tensor const& q, std::string_view named, Outputs const* given,
                   TensorView const* schedule) {
  auto& params = problem.params;
  int32_t const device_index = q.get_device_index();
  torch::stable::accelerator::DeviceGuard const guard(device_index);
  Gpu const gpu = current_gpu(device_index);
  GpuSelection const selection =
      named.empty() ? select_on_gpu(problem, gpu) : named_on_gpu(problem, gpu, named);
  Outputs outputs = allocate_outputs(q, problem, given);
  if (params.lse_strides.split == 0) {
    return outputs;
  }
  void* const stream = current_cuda_stream(device_index);
  if (selection.of_few) {
    run_beside(selection, params, q, stream);
    return outputs;
  }
  Kernel<Forward> const& kernel = selection.choice.candidate.kernel;
  Forward::Params fit = fitted(params, *kernel.row, selection.splits);
  if (schedule != nullptr) {
    take_schedule(*schedule, fit);
  }
  for_each_slice(fit, [&](Forward::Params slice) {
    if (slice.merges_shares) {
      slice.tag = new_launch_tag();
    }
    auto const workspace = allocate_workspace<Forward>(q, slice);
    run(kernel, slice, stream);
  });
  return outputs;
}

Outputs run_variant_on_gpu(Problem& problem, Tensor const& q, CpuVariant const& variant,
                           Promise const& promise, std::string_view named) {
  auto& params = problem.params;
  int32_t const device_index = q.get_device_index();
  torch::stable::accelerator::DeviceGuard const guard(device_index);
  Gpu const gpu = current_gpu(device_index);
  VariantKernel const kernel = select_variant(problem, gpu, variant.program, named);
  Splits const splits =
      splits_with_variant(problem, kernel.row->row.shape, kernel.ctas_per_sm, gpu.n_sms);
  params.num_splits = splits.number;
  params.cluster = splits.cluster;
  Outputs outputs = allocate_outputs(q, problem);
  if (params.lse_strides.split > 0) {
    auto const workspace = allocate_workspace<Forward>(q, params);
    void* const stream = current_cuda_stream(device_index);
    MadeMemory memory(kernel, params, variant.arguments, promise, q, stream);
    int const error = kernel.row->run(*kernel.row, kernel.features, params, variant.arguments,
                                      memory.data(), memory.is_made(), stream);
    require_able(error == 0, "the kernel of the variant was not launched: ",
                 kernel.library->error_string(error));
    memory.launched();
  }
  return outputs;
}

Outputs run_on_cpu(Problem& problem, Tensor const& q, std::string_view named,
                   CpuVariant const* variant = nullptr, Outputs const* given = nullptr) {
  auto& params = problem.params;
  CpuConfig const config = cpu_config(named.empty() ? select_on_cpu(problem).config
                                                    : named_on_cpu(problem, named).config);
  params.num_splits = params.cluster = 1;
  Outputs outputs = allocate_outputs(q, problem, given);
  if (params.lse_strides.split > 0) {
    torch::stable::parallel_for(
        0, n_cpu_tasks(problem, config), 1,
        [&](int64_t begin, int64_t end) { forward_cpu(problem, config, variant, begin, end); });
  }
  if (variant != nullptr) {
    variant->check_inside();
  }
  return outputs;
}

Outputs run(Call const& call, Problem& problem, Tensor const& q, Outputs const* given = nullptr,
            TensorView const* schedule = nullptr) {
  bool const on_gpu = call.q.device.kind == Device::Kind::kCuda;
  return on_gpu ? run_on_gpu(problem, q, call.options.config, given, schedule)
                : run_on_cpu(problem, q, call.options.config, nullptr, given);
}

VariantCall take_variant(Arguments& arguments) {
  return {.text = arguments.take<std::string>(),
          .tensors = arguments.take_tensors("a tensor of the variant", /*optional=*/true),
          .reals = arguments.take_list<double>(),
          .integers = arguments.take_list<int64_t>()};
}

// Runs a call with a variant.
void put_variant_results(StableIValue* stack, Tensor const& q, Call const& call,
                         VariantCall const& variant,
                         std::optional<std::vector<int64_t>> const& promised) {
  // NOTE: a variant reads heads and positions, which the simplified problem of one query has no more.
  Problem problem = problem_as_asked(call);
  auto const program = known_variant(variant.text);
  CpuVariant const captured{*program,
                            check_variant(variant, *program, call.q.device, call.options)};
  Promise const promise = Promise::of(promised, captured.arguments);
  bool const on_gpu = call.q.device.kind == Device::Kind::kCuda;
  Outputs const outputs =
      on_gpu ? run_variant_on_gpu(problem, q, captured, promise, call.options.config)
             : run_on_cpu(problem, q, call.options.config, &captured);
  put_results(stack, outputs.out, outputs.lse);
}

// The first arguments of ops over pages.
Call take_paged_inputs(Arguments& arguments) {
  Call call{.q = arguments.take_tensor("q"),
            .k = arguments.take_tensor("k_cache"),
            .v = arguments.take_tensor("v_cache")};
  call.paging = Paging{.block_table = arguments.take_tensor("block_table"),
                       .seqlens_k = arguments.take_tensor("seqlens_k"),
                       .packed = {}};
  return call;
}
void take_packed_queries(Call& call, Arguments& arguments) {
  auto const cu_seqlens_q = arguments.take_optional_tensor("cu_seqlens_q");
  auto const max_seqlen_q = arguments.take<std::optional<int64_t>>();
  require(cu_seqlens_q.has_value() || !max_seqlen_q.has_value(),
          "max_seqlen_q came without cu_seqlens_q: expected both, or neither");
  require(max_seqlen_q.has_value() || !cu_seqlens_q.has_value(),
          "cu_seqlens_q came without max_seqlen_q: expected both, or neither");
  if (cu_seqlens_q) {
    call.paging->packed = PackedQueries{*cu_seqlens_q, *max_seqlen_q};
  }
}

// A call of attention over pages with any q of these shapes.
struct ScheduleCall {
  explicit ScheduleCall(Arguments& arguments) {
    int64_t const heads = arguments.take<int64_t>();
    call.k = call.v = arguments.take_tensor("k_cache");
    call.paging = Paging{.block_table = arguments.take_tensor("block_table"),
                         .seqlens_k = arguments.take_tensor("seqlens_k")};
    auto const cu_seqlens_q = arguments.take_optional_tensor("cu_seqlens_q");
    auto const max_seqlen_q = arguments.take<int64_t>();
    call.options = arguments.take_options();
    require(call.k.rank == 4, call.k.name, " has shape ", ShapeOf{call.k},
            ": expected 4 dimensions, (num_pages, page_size, heads_kv, d_head)");
    require(heads >= 0, "heads = ", heads, ": expected at least 0");
    require(max_seqlen_q >= 0, "max_seqlen_q = ", max_seqlen_q, ": expected at least 0");
    require(call.options.num_splits == kSplitsByLength, "num_splits = ", call.options.num_splits,
            ": expected ", kSplitsByLength, ", whose work a schedule is");
    int64_t const batch = call.paging->seqlens_k.rank == 1 ? call.paging->seqlens_k.sizes[0] : 0;
    int64_t const d_head = call.k.sizes[3];
    if (cu_seqlens_q) {
      call.paging->packed = PackedQueries{*cu_seqlens_q, max_seqlen_q};
      sizes = {total_of(*cu_seqlens_q, batch * max_seqlen_q), heads, d_head};
    } else {
      sizes = {batch, max_seqlen_q, heads, d_head};
    }
    strides.resize(sizes.size());
    int64_t stride = 1;
    for (size_t i = sizes.size(); i-- > 0;) {
      strides[i] = stride;
      stride *= std::max<int64_t>(sizes[i], 1);
    }
    // NOTE: nothing reads it.
    call.q = call.k;
    call.q.name = "q";
    call.q.rank = static_cast<int>(sizes.size());
    call.q.sizes = sizes.data();
    call.q.strides = strides.data();
  }
  ScheduleCall(ScheduleCall const&) = delete;

  // The rows of packed queries, where the host sees them; else as many as there may be.
  static int64_t total_of(TensorView const& starts, int64_t most) {
    bool const is_seen = starts.device.kind == Device::Kind::kCpu && starts.rank == 1 &&
                         starts.sizes[0] > 0 && starts.dtype == ElementType::kInt32;
    return is_seen ? static_cast<int const*>(starts.data)[(starts.sizes[0] - 1) * starts.strides[0]]
                   : most;
  }

  bool on_gpu() const { return call.k.device.kind == Device::Kind::kCuda; }

  Call call{};
  std::vector<int64_t> sizes, strides;  // of q
};

// Sets what the list of shares depends on; on a GPU by the kernel that it is for.
std::optional<Kernel<Forward>> schedule_problem(ScheduleCall const& asked, int32_t device_index,
                                                Problem& problem) {
  problem = problem_of(asked.call);
  if (!asked.on_gpu()) {
    constexpr int kBlock = 64, kShares = 264;  // as on an H200
    share_keys(problem.params,
               {.B_r = larger(problem.params.q_sequences().longest, 1), .B_c = kBlock}, kShares);
    return std::nullopt;
  }
  std::string const& named = asked.call.options.config;
  Gpu const gpu = current_gpu(device_index);
  GpuSelection const selection =
      named.empty() ? select_on_gpu(problem, gpu) : named_on_gpu(problem, gpu, named);
  Kernel<Forward> const kernel = selection.choice.candidate.kernel;
  problem.params = fitted(problem.params, *kernel.row, selection.splits);
  return kernel;
}

}  // namespace

void plan_schedule(StableIValue* stack) {
  Arguments arguments(stack);
  ScheduleCall const asked(arguments);
  int32_t const device_index = arguments.tensor(0).get_device_index();
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  if (asked.on_gpu()) {
    guard.emplace(device_index);
  }
  Problem problem{};
  auto const kernel = schedule_problem(asked, device_index, problem);
  put_results(stack, std::string(kernel ? kernel->row->short_form : ""),
              problem.params.share_listing().size());
}

void fill_schedule(StableIValue* stack) {
  Arguments arguments(stack);
  TensorView const list = arguments.take_tensor("schedule");
  ScheduleCall const asked(arguments);
  check_schedule(list, asked.call.k.device);
  int32_t const device_index = arguments.tensor(0).get_device_index();
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  if (asked.on_gpu()) {
    guard.emplace(device_index);
  }
  Problem problem{};
  auto const kernel = schedule_problem(asked, device_index, problem);
  auto& params = problem.params;
  take_schedule(list, params);
  if (!kernel) {
    auto const shared = std::make_unique<ShareListStorage>();
    write_shares(params.share_listing(), reinterpret_cast<int*>(params.share_list), *shared,
                 OneThread{}, HostLoader{});
    return;
  }
  params.is_share_list_given = params.merges_shares = false;  // so that there is a list
  prepare(*kernel, params, current_cuda_stream(device_index));
}

void forward_paged(StableIValue* stack, bool into) {
  Arguments arguments(stack);
  Call call = take_paged_inputs(arguments);
  take_packed_queries(call, arguments);
  call.paging->k_scale = arguments.take_optional_tensor("k_scale");
  call.paging->v_scale = arguments.take_optional_tensor("v_scale");
  auto const schedule = arguments.take_optional_tensor("schedule");
  call.options = arguments.take_options();
  Problem problem = problem_of(call);
  if (schedule) {
    check_schedule(*schedule, call.q.device);
    require(problem.num_splits == kSplitsByLength,
            "schedule came with num_splits = ", problem.num_splits, ": expected ", kSplitsByLength);
  }
  TensorView const* const list = schedule ? &*schedule : nullptr;
  Tensor const& q = arguments.tensor(0);
  if (into) {
    auto const out = arguments.take<Tensor>();
    Outputs const given{out, arguments.take<Tensor>()};
    run(call, problem, q, &given, list);
    return;
  }
  Outputs const outputs = run(call, problem, q, nullptr, list);
  put_results(stack, outputs.out, outputs.lse);
}

void forward_paged_variant(StableIValue* stack) {
  Arguments arguments(stack);
  Call call = take_paged_inputs(arguments);
  VariantCall const variant = take_variant(arguments);
  take_packed_queries(call, arguments);
  call.options = arguments.take_options();
  put_variant_results(stack, arguments.tensor(0), call, variant, std::nullopt);
}

void forward_variant(StableIValue* stack) {
  Arguments arguments(stack);
  Call call{.q = arguments.take_tensor("q"),
            .k = arguments.take_tensor("k"),
            .v = arguments.take_tensor("v")};
  VariantCall const variant = take_variant(arguments);
  auto const cu_seqlens_q = arguments.take_optional_tensor("cu_seqlens_q");
  auto const cu_seqlens_k = arguments.take_optional_tensor("cu_seqlens_k");
  auto const max_seqlen_q = arguments.take<std::optional<int64_t>>();
  auto const max_seqlen_k = arguments.take<std::optional<int64_t>>();
  bool const packed = cu_seqlens_q.has_value();
  require(packed == cu_seqlens_k.has_value() && packed == max_seqlen_q.has_value() &&
              packed == max_seqlen_k.has_value(),
          "some of cu_seqlens_q, cu_seqlens_k, max_seqlen_q and max_seqlen_k came without the "
          "others: expected all, or none");
  if (packed) {
    call.packing = Packing{*cu_seqlens_q, *cu_seqlens_k, *max_seqlen_q, *max_seqlen_k};
  }
  arguments.take<std::string>();  // whose kernels compute gradients: autograd's affair
  auto const promised = arguments.take<std::optional<std::vector<int64_t>>>();
  call.options = arguments.take_options();
  put_variant_results(stack, arguments.tensor(0), call, variant, promised);
}

void forward(StableIValue* stack, bool packed) {
  Arguments arguments(stack);
  Call call{.q = arguments.take_tensor("q"),
            .k = arguments.take_tensor("k"),
            .v = arguments.take_tensor("v")};
  if (packed) {
    call.packing = Packing{.cu_seqlens_q = arguments.take_tensor("cu_seqlens_q"),
                           .cu_seqlens_k = arguments.take_tensor("cu_seqlens_k"),
                           .max_seqlen_q = arguments.take<int64_t>(),
                           .max_seqlen_k = arguments.take<int64_t>()};
  }
  call.options = arguments.take_options();
  Problem problem = problem_of(call);
  Outputs const outputs = run(call, problem, arguments.tensor(0));
  put_results(stack, outputs.out, outputs.lse);
}

}  // namespace pyflash
