#include "cute_kernels/host/variant_call.h"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>

#include "cute_kernels/host/errors.h"

namespace pyflash {
namespace {

constexpr size_t kMostKept = 256;
constexpr int64_t kMostIndices = std::numeric_limits<int>::max();

variant::TensorArgument check_tensor(TensorView const& tensor, VariantParam const& param,
                                     Device device) {
  std::string const& name = param.name;
  require(tensor.device == device, name, " of the variant is on ", tensor.device, ": expected ",
          device, ", where q is");
  require(tensor.dtype == param.type, name, " of the variant is ", tensor.dtype, ": expected ",
          param.type);
  require(tensor.rank == param.rank, name, " of the variant has shape ", ShapeOf{tensor},
          ": expected ", param.rank, " axes");
  bool const is_empty =
      std::find(tensor.sizes, tensor.sizes + tensor.rank, 0) != tensor.sizes + tensor.rank;
  require(!is_empty, name, " of the variant has shape ", ShapeOf{tensor},
          ": expected some elements in each axis");
  bool const is_long = std::any_of(tensor.sizes, tensor.sizes + tensor.rank,
                                   [](int64_t size) { return size > kMostIndices; });
  require(!is_long, name, " of the variant has shape ", ShapeOf{tensor}, ": expected at most ",
          kMostIndices, " elements in an axis");
  variant::TensorArgument argument{
      .data = tensor.data, .rank = tensor.rank, .extents = {}, .strides = {}};
  std::copy_n(tensor.sizes, tensor.rank, argument.extents);
  std::copy_n(tensor.strides, tensor.rank, argument.strides);
  return argument;
}

void check_count(size_t found, size_t expected, char const* what) {
  require(found == expected, "the variant got ", found, " ", what, ": expected ", expected,
          ", one for each parameter that is one");
}

}  // namespace

std::shared_ptr<VariantProgram const> known_variant(std::string const& text) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<VariantProgram const>> known;
  std::scoped_lock const lock(mutex);
  auto const found = known.find(text);
  if (found != known.end()) {
    return found->second;
  }
  if (known.size() >= kMostKept) {
    known.clear();
  }
  return known.emplace(text, std::make_shared<VariantProgram const>(parse_variant(text)))
      .first->second;
}

void refuse_beside_variant(Options const& options) {
  require(
      !options.alibi_slopes,
      "alibi_slopes came with a variant: expected one of the two, the variant can add the bias");
  require(options.dropout_p == 0, "dropout_p = ", options.dropout_p,
          " came with a variant: expected one of the two");
  require(options.num_splits >= 0, "num_splits = ", options.num_splits,
          " came with a variant: expected a number from 0 to ", kMaxSplits);
}

variant::Arguments check_variant(VariantCall const& call, VariantProgram const& program,
                                 Device device, Options const& options) {
  refuse_beside_variant(options);
  auto const count = [&](auto const& is_one) {
    return static_cast<size_t>(std::count_if(program.params.begin(), program.params.end(), is_one));
  };
  size_t const n_tensors = count([](VariantParam const& param) { return param.is_tensor; });
  size_t const n_reals =
      count([](VariantParam const& param) { return !param.is_tensor && param.is_real(); });
  check_count(call.tensors.size(), n_tensors, "tensors");
  check_count(call.reals.size(), n_reals, "floats");
  check_count(call.integers.size(), program.params.size() - n_tensors - n_reals, "integers");
  variant::Arguments arguments{.tensors = {}, .reals = call.reals, .integers = call.integers};
  for (VariantParam const& param : program.params) {
    if (param.is_tensor) {
      arguments.tensors.push_back(check_tensor(call.tensors[param.place], param, device));
    }
  }
  return arguments;
}

void set_sums(variant::Arguments& arguments, std::vector<TensorView> const& sums,
              std::vector<int64_t> const& places) {
  require(sums.size() == places.size(), "there are ", sums.size(), " sums of ", places.size(),
          " captured tensors: expected one for each");
  arguments.sums_of.assign(arguments.tensors.size(), nullptr);
  int64_t before = -1;
  for (size_t i = 0; i < sums.size(); ++i) {
    int64_t const place = places[i];
    require(place > before && place < int64_t(arguments.tensors.size()), "captured tensor ", place,
            " is summed: expected one of ", arguments.tensors.size(), ", ascending");
    before = place;
    TensorView const& found = sums[i];
    variant::TensorArgument const& tensor = arguments.tensors[place];
    bool is_like = found.dtype == ElementType::kFloat32 && found.rank == tensor.rank;
    int64_t stride = 1;
    for (int axis = tensor.rank - 1; is_like && axis >= 0; --axis) {
      int64_t const extent = tensor.extents[axis];
      is_like = found.sizes[axis] == extent && (extent == 1 || found.strides[axis] == stride);
      stride *= extent;
    }
    require(is_like, "the sums of captured tensor ", place, " have shape ", ShapeOf{found},
            ": expected those of the tensor, in float32, contiguous");
    arguments.sums_of[place] = static_cast<float*>(const_cast<void*>(found.data));
  }
}

}  // namespace pyflash
