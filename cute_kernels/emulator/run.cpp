#include "cute_kernels/emulator/run.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <iterator>
#include <utility>

#include "cute_kernels/emulator/params.h"
#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/fold_splits.h"
#include "cute_kernels/host/merge_shares.h"
#include "cute_kernels/host/problem.h"
#include "cute_kernels/host/splits.h"
#include "cute_kernels/variant/arguments.h"

namespace pyflash::emulator {
namespace {

// NOTE: they stand for tensors of a GPU, where the values of cu_seqlens are not checked.
constexpr Device kDevice{Device::Kind::kCuda, 0};
constexpr uint64_t kTag = 0x9e3779b97f4a7c15;

class ForwardRun final : public Run {
 public:
  using Run::Run;

  void prepare(char const* config, DType dtype, int d_head) override {
    kernel_dtype_ = dtype;
    // NOTE: a variant reads heads and positions, as in the op fwd_variant.
    Problem const problem = kernel_.has_variant ? problem_as_asked(call()) : problem_of(call());
    check_config_fits(config, dtype, d_head, problem);
    int const resident = n_resident();
    params_ = problem.params;
    bool const shares_keys = problem.num_splits == kSplitsByLength;
    params_.num_splits = shares_keys ? 1
                         : problem.num_splits == kSplitsAtFixedKeys
                             ? count_fixed_splits(params_, kernel_.shape, resident)
                             : problem.num_splits;
    params_.cluster = 1;
    if (shares_keys && runs_beside()) {
      leave_rows_to_the_kernel_beside();
    }
    if (char const* const reason = kernel_.refusal ? kernel_.refusal(params_) : nullptr) {
      refuse("config '", config, "' cannot run this problem: ", reason);
    }
    if (shares_keys) {
      share_keys(params_, kernel_.shape, resident);
      params_.merges_shares = params_.merges_shares && !params_.runs_beside;
      return;
    }
    if (kernel_.cluster != nullptr && !params_.has_fixed_splits) {
      params_.cluster = kernel_.cluster(params_, resident);
    }
    list_uneven_tiles(d_head);
  }
  std::string problem() const override { return numbers_json(params_); }
  // The parts of O and lse that a kernel writes for another to merge. NOTE: those of splits at fixed keys are merged here.
  int n_parts() const override {
    return params_.has_fixed_splits ? 1 : params_.num_splits / params_.cluster;
  }

  void set_outputs(void* const* outputs) override {
    if (n_parts() > 1) {
      params_.o_partial = static_cast<float*>(outputs[0]);
      params_.lse_partial = static_cast<float*>(outputs[1]);
    } else {
      params_.o = outputs[0];
      params_.lse = static_cast<float*>(outputs[1]);
    }
  }

 private:
  void leave_rows_to_the_kernel_beside() {
    Sequences q = params_.q_sequences();
    q.longest = smaller(q.longest, kernel_.shape.n_queries(params_));
    params_.set_q_sequences(q);
    params_.runs_beside = true;
  }

  // As selection does, where a kernel is compiled that takes the list.
  void list_uneven_tiles(int d_head) {
    Forward::Params listed = params_;
    pyflash::list_uneven_tiles(listed, kernel_.shape);
    ForwardFeatures const needed = features_needed(listed, d_head);
    for (ForwardFeatures const& built : kernel_.features) {
      if (!kernel_.has_variant && covers(built, needed)) {
        params_ = listed;
        params_.least_listed_rows = least_listed_rows();
        return;
      }
    }
  }

  // NOTE: not zeros: what the list does not have is whatever memory held.
  void write_list() {
    if (!params_.has_tile_list()) {
      return;
    }
    TileListing const listing = params_.tile_listing();
    list_.assign(listing.size(), INT_MAX);
    auto const shared = std::make_unique<TileListStorage>();
    write_tile_list(listing, list_.data(), *shared, OneThread{}, HostLoader{});
    list_[1] = smaller(list_[1], listed_ctas());
    params_.tile_list = reinterpret_cast<float*>(list_.data());
  }

  bool leaves_fixed_parts() const { return params_.has_fixed_splits && leaves_parts(params_); }

  void prepare_parts() {
    if (leaves_fixed_parts()) {
      lse_parts_.assign(params_.num_splits * params_.lse_strides.split, NAN);
      o_parts_.assign(lse_parts_.size() * params_.d_head, NAN);
      params_.lse_partial = lse_parts_.data();
      params_.o_partial = o_parts_.data();
    }
  }

  void prepare_shares() {
    if (!params_.has_shares()) {
      return;
    }
    if (!params_.merges_shares) {
      ShareListing const listing = params_.share_listing();
      list_.assign(listing.size(), INT_MAX);
      auto const shared = std::make_unique<ShareListStorage>();
      write_shares(listing, list_.data(), *shared, OneThread{}, HostLoader{});
      params_.share_list = reinterpret_cast<float*>(list_.data());
    }
    params_.tag = kTag;
    size_t const n_rows = size_t(2) * params_.n_shares * params_.rows_of_part();
    lse_parts_.assign(n_rows * (params_.merges_shares ? 4 : 1), NAN);
    o_parts_.assign(n_rows * params_.d_head * (params_.merges_shares ? 2 : 1), NAN);
    params_.lse_partial = lse_parts_.data();
    params_.o_partial = o_parts_.data();
  }

  Launch launch_of(int, Emulator& emulator) override {
    variant::Arguments arguments = captured();
    arguments.host_starts_q = params_.q_sequences().starts;
    KvSource const kv = params_.kv();
    arguments.host_starts_k = kv.is_paged() ? kv.pages.lengths : kv.sequences.starts;
    write_list();
    prepare_shares();
    prepare_parts();
    Forward::Params mapped = params_;
    if (leaves_fixed_parts()) {
      mapped.o = nullptr;
      mapped.lse = nullptr;
    }
    map_memory(mapped, emulator);
    return kernel_.launch(mapped, arguments, n_resident());
  }

  void after_phase(int) override {
    if (leaves_shares_to_merge(params_)) {
      merge_shares_on_host(params_, kernel_dtype_);
    }
    if (leaves_fixed_parts()) {
      fold_splits_on_host(params_, kernel_dtype_);
    }
  }

  Forward::Params params_{};
  DType kernel_dtype_{};
  std::vector<int> list_;
  std::vector<float> o_parts_;
  std::vector<float> lse_parts_;
};

}  // namespace

bool Run::set_tensor(char const* name, void const* data, int rank, int64_t const* shape,
                     int64_t const* strides, ElementType dtype) {
  tensors_[name] = {.data = data,
                    .shape = {shape, shape + rank},
                    .strides = {strides, strides + rank},
                    .dtype = dtype};
  return takes_tensor(name);
}

namespace {

constexpr std::string_view kVariant = "variant ";
constexpr std::string_view kSums = "sums of variant ";

}  // namespace

bool Run::set_float(char const* name, double value) {
  if (std::string_view(name) == "variant") {
    reals_.push_back(value);
    return true;
  }
  return set_option(options_, name, value);
}

bool Run::set_integer(char const* name, int64_t value) {
  if (std::string_view(name) == "variant") {
    integers_.push_back(value);
    return true;
  }
  for (auto const& [length, member] : {std::pair("max_seqlen_q", &Run::max_seqlen_q_),
                                       std::pair("max_seqlen_k", &Run::max_seqlen_k_),
                                       std::pair("resident_ctas", &Run::resident_ctas_),
                                       std::pair("least_listed_rows", &Run::least_listed_rows_),
                                       std::pair("runs_beside", &Run::runs_beside_),
                                       std::pair("listed_ctas", &Run::listed_ctas_)}) {
    if (std::string_view(name) == length) {
      this->*member = value;
      return true;
    }
  }
  return set_option(options_, name, value);
}

char const* Run::begin_phase(int phase) {
  phase_ = phase;
  emulator_ = std::make_unique<Emulator>(kernel_of(phase), order_, seed_);
  launch_ = launch_of(phase, *emulator_);
  return launch_.error;
}

bool Run::takes_tensor(std::string_view name) const {
  constexpr std::string_view kInputs[] = {
      "q",           "k",         "v",       "cu_seqlens_q", "cu_seqlens_k",
      "block_table", "seqlens_k", "k_scale", "v_scale"};
  bool found = std::find(std::begin(kInputs), std::end(kInputs), name) != std::end(kInputs) ||
               name.starts_with(kVariant) || name.starts_with(kSums);
  for_each_option([&]<class Row>(Row const& option) {
    found = found || (kIsTensor<Row> && name == option.name);
  });
  return found;
}

variant::Arguments Run::captured() const {
  variant::Arguments captured{.tensors = {}, .reals = reals_, .integers = integers_};
  for (int i = 0;; ++i) {
    auto const found = tensors_.find(std::string(kVariant) + std::to_string(i));
    if (found == tensors_.end()) {
      return captured;
    }
    Tensor const& tensor = found->second;
    variant::TensorArgument argument{tensor.data, static_cast<int>(tensor.shape.size()), {}, {}};
    std::copy(tensor.shape.begin(), tensor.shape.end(), argument.extents);
    std::copy(tensor.strides.begin(), tensor.strides.end(), argument.strides);
    captured.tensors.push_back(argument);
    auto const sums = tensors_.find(std::string(kSums) + std::to_string(i));
    bool const has_sums = sums != tensors_.end();
    captured.sums_of.push_back(has_sums ? static_cast<float*>(const_cast<void*>(sums->second.data))
                                        : nullptr);
  }
}

TensorView Run::view(char const* name) const {
  Tensor const& tensor = tensors_.at(name);
  return {.name = name,
          .data = tensor.data,
          .rank = static_cast<int>(tensor.shape.size()),
          .sizes = tensor.shape.data(),
          .strides = tensor.strides.data(),
          .dtype = tensor.dtype,
          .device = kDevice};
}

std::optional<TensorView> Run::optional_view(char const* name) const {
  return tensors_.contains(name) ? std::optional(view(name)) : std::nullopt;
}

Call Run::call() const {
  Call call{.q = view("q"), .k = view("k"), .v = view("v"), .packing = {}, .options = options_};
  auto const cu_seqlens_q = optional_view("cu_seqlens_q");
  if (auto const block_table = optional_view("block_table")) {
    call.paging = Paging{*block_table, view("seqlens_k"), std::nullopt, optional_view("k_scale"),
                         optional_view("v_scale")};
    if (cu_seqlens_q) {
      call.paging->packed = PackedQueries{*cu_seqlens_q, max_seqlen_q_};
    }
  } else if (cu_seqlens_q) {
    call.packing = Packing{*cu_seqlens_q, view("cu_seqlens_k"), max_seqlen_q_, max_seqlen_k_};
  }
  for_each_option([&]<class Row>(Row const& option) {
    if constexpr (kIsTensor<Row>) {
      if (auto const tensor = optional_view(option.name)) {
        call.options.*option.member = *tensor;
      }
    }
  });
  return call;
}

int Run::n_resident() const {
  require(resident_ctas_ > 0 && resident_ctas_ <= INT_MAX, "resident_ctas = ", resident_ctas_,
          ": expected a number from 1 to ", INT_MAX);
  return static_cast<int>(resident_ctas_);
}

std::unique_ptr<Run> new_run(EmulatedKernel const& kernel, Order order, uint64_t seed) {
  return kernel.backward != nullptr ? new_backward_run(kernel, order, seed)
                                    : std::make_unique<ForwardRun>(kernel, order, seed);
}

}  // namespace pyflash::emulator
