#include "cute_kernels/emulator/global_memory.h"

#include <algorithm>
#include <utility>

namespace pyflash::emulator {

namespace {

constexpr uint32_t kNoElement = 0;
constexpr uint32_t kNotWritten = 1;
constexpr uint32_t kFirstWriter = 2;

int64_t n_elements(GlobalTensor const& tensor) {
  int64_t n = 1;
  for (int64_t extent : tensor.shape) {
    n *= extent;
  }
  return n;
}

// Calls visit(offset), in elements, for every element, last dimension fastest.
template <class Visit>
void for_each_offset(GlobalTensor const& tensor, size_t dim, int64_t offset, Visit&& visit) {
  if (dim == tensor.shape.size()) {
    visit(offset);
    return;
  }
  for (int64_t i = 0; i < tensor.shape[dim]; ++i) {
    for_each_offset(tensor, dim + 1, offset + i * tensor.strides[dim], visit);
  }
}

// Elements from the first to the last, both included.
int64_t extent(GlobalTensor const& tensor) {
  if (n_elements(tensor) == 0) {
    return 0;
  }
  int64_t last = 0;
  for (size_t dim = 0; dim < tensor.shape.size(); ++dim) {
    last += (tensor.shape[dim] - 1) * tensor.strides[dim];
  }
  return last + 1;
}

}  // namespace

uintptr_t GlobalMemory::add(GlobalTensor const& tensor) {
  int64_t const n = extent(tensor);
  Tensor entry{tensor, Window(n * tensor.element_bytes, tensor.misalignment),
               std::vector<uint32_t>(n, kNoElement)};
  if (n > 0) {
    for_each_offset(tensor, 0, 0, [&](int64_t offset) { entry.elements[offset] = kNotWritten; });
  }
  tensors_.push_back(std::move(entry));
  return reinterpret_cast<uintptr_t>(tensors_.back().window.start());
}

GlobalMemory::Tensor const* GlobalMemory::find(void const* address) const {
  for (Tensor const& tensor : tensors_) {
    if (tensor.window.contains(address)) {
      return &tensor;
    }
  }
  return nullptr;
}

std::string GlobalMemory::name_at(void const* address) const {
  Tensor const* const tensor = find(address);
  return tensor == nullptr ? "" : tensor->description.name;
}

std::byte* GlobalMemory::translate(void const* address, int bytes, int alignment, int64_t writer,
                                   Access const& access, Findings& findings) {
  auto* const tensor = const_cast<Tensor*>(find(address));
  int64_t const offset = tensor->window.offset(address);
  int const element_bytes = tensor->description.element_bytes;
  auto const extent = static_cast<int64_t>(tensor->elements.size());
  int64_t const first = offset / element_bytes;
  int64_t const last = (offset + bytes - 1) / element_bytes;
  auto const& elements = tensor->elements;
  bool const inside =
      offset >= 0 && last < extent &&
      std::find(&elements[first], &elements[last] + 1, kNoElement) == &elements[last] + 1;
  if (!inside) {
    findings.add({.kind = "out_of_bounds",
                  .memory = tensor->description.name,
                  .offset = offset,
                  .bytes = bytes,
                  .access = access,
                  .detail = where(*tensor, offset)});
    return nullptr;
  }
  if (reinterpret_cast<uintptr_t>(address) % alignment != 0) {
    findings.add({.kind = "misaligned",
                  .memory = tensor->description.name,
                  .offset = offset,
                  .bytes = bytes,
                  .access = access});
  }
  if (writer == kReducer && !tensor->description.accumulator) {
    findings.add({.kind = "write_to_input",
                  .memory = tensor->description.name,
                  .offset = offset,
                  .bytes = bytes,
                  .access = access,
                  .detail = "a reduction into what is no accumulator"});
  }
  if (writer >= 0 && !tensor->description.is_recycled) {
    check_writers(*tensor, first, last, writer, access, findings);
  }
  return tensor->description.data + offset;
}

void GlobalMemory::check_writers(Tensor& tensor, int64_t first, int64_t last, int64_t writer,
                                 Access const& access, Findings& findings) {
  Finding finding{.kind = "",
                  .memory = tensor.description.name,
                  .offset = first * tensor.description.element_bytes,
                  .bytes = static_cast<int>((last - first + 1) * tensor.description.element_bytes),
                  .access = access};
  if (!tensor.description.output) {
    finding.kind = "write_to_input";
    findings.add(finding);
    return;
  }
  auto const mark = static_cast<uint32_t>(kFirstWriter + writer);
  auto const others = [&](uint32_t element) { return element != kNotWritten && element != mark; };
  if (std::any_of(&tensor.elements[first], &tensor.elements[last] + 1, others)) {
    finding.kind = "written_twice";
    finding.detail = "by two threads";
    findings.add(finding);
  }
  std::fill(&tensor.elements[first], &tensor.elements[last] + 1, mark);
}

void GlobalMemory::check_written(Findings& findings) const {
  for (Tensor const& tensor : tensors_) {
    auto const& elements = tensor.elements;
    auto const first = std::find(elements.begin(), elements.end(), kNotWritten);
    bool const may_lack = !tensor.description.output || tensor.description.is_partial;
    if (may_lack || first == elements.end()) {
      continue;
    }
    auto const n = std::count(first, elements.end(), kNotWritten);
    findings.add({.kind = "not_written",
                  .memory = tensor.description.name,
                  .offset = (first - elements.begin()) * tensor.description.element_bytes,
                  .bytes = tensor.description.element_bytes,
                  .detail = std::to_string(n) + " elements, this the first"});
  }
}

std::string GlobalMemory::where(Tensor const& tensor, int64_t offset) {
  auto const end = static_cast<int64_t>(tensor.elements.size()) * tensor.description.element_bytes;
  if (offset < 0) {
    return std::to_string(-offset) + " bytes before the start";
  }
  if (offset >= end) {
    return std::to_string(offset - end) + " bytes past the end";
  }
  return "between or across the rows";
}

}  // namespace pyflash::emulator
