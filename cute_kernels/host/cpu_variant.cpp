#include "cute_kernels/host/cpu_variant.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "cute_kernels/host/errors.h"

namespace pyflash {
namespace {

template <class T>
T read(void const* data, int64_t offset) {
  T value;
  std::memcpy(&value, static_cast<T const*>(data) + offset, sizeof(T));
  return value;
}

// An element of a tensor, as a program has it.
Word element_at(void const* data, ElementType type, int64_t offset) {
  Word word{.integer = 0};
  switch (type) {
    case ElementType::kBool:
      word.integer = read<uint8_t>(data, offset) != 0;
      break;
    case ElementType::kInt32:
      word.integer = read<int32_t>(data, offset);
      break;
    case ElementType::kInt64:
      word.integer = read<int64_t>(data, offset);
      break;
    case ElementType::kFloat32:
      word.real = read<float>(data, offset);
      break;
    case ElementType::kFloat16:
      word.real = variant::number(read<variant::Half>(data, offset));
      break;
    default:
      word.real = variant::number(read<variant::BFloat16>(data, offset));
  }
  return word;
}

}  // namespace

void CpuVariant::check_inside() const {
  int const param = strayed.load();
  require(param < 0, "an index is outside of ", param < 0 ? "" : program.params[param].name,
          " at a pair that counts: expected an index inside, clamp it in the variant");
}

void VariantRunner::apply(ScoreRow const& row, float* scores, int n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  auto const note = [&](int i) {
    if (stray_[i] >= 0) {
      variant_.strayed.store(stray_[i]);
    }
  };
  Word const* const mask = run(variant_.program.mask, row, scores, n);
  std::vector<bool> shown(n);
  for (int i = 0; i < n; ++i) {
    note(i);
    shown[i] = mask[i].integer != 0;
  }
  Word const* const score = run(variant_.program.score, row, scores, n);
  for (int i = 0; i < n; ++i) {
    if (shown[i]) {
      note(i);
    }
    scores[i] = shown[i] ? score[i].real : -kInfinity;
  }
}

Word const* VariantRunner::run(Program const& program, ScoreRow const& row, float const* scores,
                               int n) {
  auto const size = static_cast<size_t>(n);
  stack_.resize(std::max<size_t>(stack_.size(), program.stack));
  slots_.resize(std::max<size_t>(slots_.size(), program.slots));
  for (auto& values : stack_) {
    values.resize(std::max(values.size(), size));
  }
  stray_.assign(size, -1);
  std::vector<Word*> operands;
  int height = 0;
  for (Instruction const& instruction : program.code) {
    using Kind = Instruction::Kind;
    int taken = 0;
    if (instruction.kind == Kind::kOperation || instruction.kind == Kind::kKeep) {
      taken = instruction.kind == Kind::kKeep ? 1 : instruction.operand;
    } else if (instruction.kind == Kind::kLoad) {
      taken = variant_.program.params[instruction.operand].rank;
    }
    height -= taken;
    operands.clear();
    for (int i = 0; i < std::max(taken, 1); ++i) {
      operands.push_back(stack_[height + i].data());
    }
    Word* const top = operands.front();
    switch (instruction.kind) {
      case Kind::kConstant:
        std::fill(top, top + n, instruction.constant);
        break;
      case Kind::kIndex:
        for (int i = 0; i < n; ++i) {
          top[i] = index_of(row, instruction.operand, scores, i);
        }
        break;
      case Kind::kLoad:
        load(instruction.operand, operands.data(), n);
        break;
      case Kind::kKeep:
        slots_[instruction.operand].assign(top, top + n);
        break;
      case Kind::kRecall:
        std::copy_n(slots_[instruction.operand].begin(), n, top);
        break;
      case Kind::kOperation:
        instruction.operation(operands.data(), n);
    }
    ++height;
  }
  return stack_.front().data();
}

Word VariantRunner::index_of(ScoreRow const& row, int index, float const* scores, int i) const {
  Word word{.integer = 0};
  if (index == 0) {
    word.real = scores[i];
    return word;
  }
  int const values[] = {row.batch,         row.head,          row.query,      row.first_key + i,
                        row.lengths.q_len, row.lengths.k_len, row.lengths.q0, row.lengths.k0};
  word.integer = values[index - 1];
  return word;
}

void VariantRunner::load(int param, Word* const* operands, int n) {
  VariantParam const& known = variant_.program.params[param];
  auto const& arguments = variant_.arguments;
  if (!known.is_tensor) {
    Word word{.integer = 0};
    if (known.is_real()) {
      word.real = arguments.real(known.place);
    } else {
      word.integer = arguments.integers[known.place];
    }
    std::fill(operands[0], operands[0] + n, word);
    return;
  }
  variant::TensorArgument const& tensor = arguments.tensors[known.place];
  for (int i = 0; i < n; ++i) {
    int64_t offset = 0;
    for (int axis = 0; axis < known.rank; ++axis) {
      int64_t const extent = tensor.extents[axis], index = operands[axis][i].integer;
      int64_t const place = index < 0 ? index + extent : index;
      if (place < 0 || place >= extent) {
        stray_[i] = param;
      }
      offset += std::clamp<int64_t>(place, 0, extent - 1) * tensor.strides[axis];
    }
    operands[0][i] = element_at(tensor.data, known.type, offset);
  }
}

}  // namespace pyflash
