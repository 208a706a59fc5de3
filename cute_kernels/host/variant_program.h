// A variant as a call of the op has it: its portable text (pyflash/variant/portable.py), with a postfix program of its score
// function and one of its mask, which run without a compiler.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cute_kernels/host/tensor_view.h"

namespace pyflash {

// A number of a program: a float in `real`, any other in `integer`.
union Word {
  int64_t integer;
  float real;
};

// An operation on n values of each operand. The result replaces the first operand.
using Operation = void (*)(Word* const* operands, int n);

struct Instruction {
  enum class Kind { kConstant, kIndex, kLoad, kKeep, kRecall, kOperation };
  Kind kind;
  int operand = 0;  // of the parameter, the slot or the index; operands of an operation
  Word constant{};
  Operation operation = nullptr;
};

struct Program {
  std::vector<Instruction> code;
  int stack = 0;  // the most values at a time
  int slots = 0;
};

// A number, or a tensor of `rank` axes.
struct VariantParam {
  std::string name;
  ElementType type;
  bool is_tensor;
  int rank;
  int place;  // among the call's tensors, reals or integers

  bool is_real() const { return type == ElementType::kFloat32; }
};

struct VariantProgram {
  std::string text;  // in one line
  std::string key;
  std::vector<VariantParam> params;
  Program mask;
  Program score;
};

// Refuses what is no portable text.
VariantProgram parse_variant(std::string_view portable);

}  // namespace pyflash
