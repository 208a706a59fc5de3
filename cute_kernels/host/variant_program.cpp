#include "cute_kernels/host/variant_program.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "cute_kernels/host/errors.h"
#include "cute_kernels/host/variant_operations.h"

namespace pyflash {
namespace {

constexpr std::string_view kHead = "pyflash variant 1";
constexpr char kSeparator = ';';
// As expr.MEANINGS has them.
constexpr std::string_view kIndices[] = {"s", "b", "h", "q", "k", "q_len", "k_len", "q0", "k0"};
constexpr std::pair<std::string_view, ElementType> kTypes[] = {
    {"bool", ElementType::kBool},   {"i32", ElementType::kInt32},
    {"i64", ElementType::kInt64},   {"f32", ElementType::kFloat32},
    {"f16", ElementType::kFloat16}, {"bf16", ElementType::kBFloat16}};

// The text before the first `separator`, which is taken off with it.
std::string_view take(std::string_view& text, char separator) {
  size_t const end = std::min(text.find(separator), text.size());
  std::string_view const found = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return found;
}

int number_of(std::string_view text) {
  int value = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size() && value >= 0,
          "the variant has '", text, "' in its program: expected a number");
  return value;
}

ElementType type_of(std::string_view name) {
  for (auto const& [known, type] : kTypes) {
    if (name == known) {
      return type;
    }
  }
  refuse("the variant has the type '", name, "': expected bool, i32, i64, f32, f16 or bf16");
}

// name:f32[2], name:f32
VariantParam param_of(std::string_view word) {
  std::string_view const name = take(word, ':');
  std::string_view const type = take(word, '[');
  bool const is_tensor = !word.empty();
  return {.name = std::string(name),
          .type = type_of(type),
          .is_tensor = is_tensor,
          .rank = is_tensor ? number_of(take(word, ']')) : 0,
          .place = 0};
}

// f32:0x1.8p+0, i32:5
Word constant_of(std::string_view text) {
  std::string_view const type = take(text, ':');
  std::string const digits(text);
  Word word{.integer = 0};
  if (type_of(type) == ElementType::kFloat32) {
    word.real = std::strtof(digits.c_str(), nullptr);
  } else {
    word.integer = std::strtoll(digits.c_str(), nullptr, 10);
  }
  return word;
}

Instruction instruction_of(std::string_view word) {
  using Kind = Instruction::Kind;
  if (word.find(':') == word.npos) {
    NamedOperation const found = find_operation(word);
    return {Kind::kOperation, found.arity, {}, found.operation};
  }
  std::string_view const name = take(word, ':');
  if (name == "constant") {
    return {Kind::kConstant, 0, constant_of(word)};
  }
  if (name == "index") {
    for (int i = 0; i < static_cast<int>(std::size(kIndices)); ++i) {
      if (word == kIndices[i]) {
        return {Kind::kIndex, i};
      }
    }
    refuse("the variant reads '", word, "': expected one of s b h q k q_len k_len q0 k0");
  }
  for (auto const& [known, kind] : {std::pair("load", Kind::kLoad), std::pair("keep", Kind::kKeep),
                                    std::pair("recall", Kind::kRecall)}) {
    if (name == known) {
      return {kind, number_of(word)};
    }
  }
  refuse("the variant has the instruction '", name, "': expected text that this version wrote");
}

// How an instruction changes the height of the stack. Refuses operands that are not there.
int growth_of(Instruction const& instruction, VariantProgram const& variant, Program const& program,
              int height) {
  int operands = 0;
  switch (instruction.kind) {
    case Instruction::Kind::kOperation:
      operands = instruction.operand;
      break;
    case Instruction::Kind::kLoad:
      require(instruction.operand < static_cast<int>(variant.params.size()),
              "the variant loads parameter ", instruction.operand, ", and has ",
              variant.params.size());
      operands = variant.params[instruction.operand].rank;
      break;
    case Instruction::Kind::kKeep:
      operands = 1;
      [[fallthrough]];
    case Instruction::Kind::kRecall:
      require(instruction.operand < program.slots, "the variant has slot ", instruction.operand,
              ": expected fewer than ", program.slots);
      break;
    default:
      break;
  }
  require(height >= operands,
          "the variant's program takes more than there is: expected text that "
          "pyflash wrote");
  return 1 - operands;
}

Program program_of(std::string_view line, VariantProgram const& variant) {
  Program program;
  program.stack = number_of(take(line, ' '));
  program.slots = number_of(take(line, ' '));
  int height = 0;
  while (!line.empty()) {
    Instruction const instruction = instruction_of(take(line, ' '));
    height += growth_of(instruction, variant, program, height);
    require(height <= program.stack, "the variant's program needs more than ", program.stack,
            " values at a time: expected text that pyflash wrote");
    program.code.push_back(instruction);
  }
  require(height == 1, "the variant's program leaves ", height, " values: expected 1");
  return program;
}

}  // namespace

VariantProgram parse_variant(std::string_view portable) {
  require(take(portable, kSeparator) == kHead, "the text of the variant is not portable: expected ",
          "'", kHead, "' at first, as Variant.portable has it");
  VariantProgram variant;
  variant.text = take(portable, kSeparator);
  variant.key = take(portable, kSeparator);
  std::string_view params = take(portable, kSeparator);
  std::array<int, 3> places{};  // of tensors, reals and integers
  while (!params.empty()) {
    VariantParam param = param_of(take(params, ' '));
    param.place = places[param.is_tensor ? 0 : param.is_real() ? 1 : 2]++;
    variant.params.push_back(param);
  }
  variant.mask = program_of(take(portable, kSeparator), variant);
  variant.score = program_of(take(portable, kSeparator), variant);
  return variant;
}

}  // namespace pyflash
