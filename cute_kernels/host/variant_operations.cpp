#include "cute_kernels/host/variant_operations.h"

#include <functional>
#include <map>
#include <string>
#include <type_traits>

#include "cute_kernels/host/errors.h"
#include "cute_kernels/variant/arithmetic.h"

namespace pyflash {
namespace {

template <class T>
T get(Word word) {
  if constexpr (std::is_same_v<T, float>) {
    return word.real;
  } else {
    return static_cast<T>(word.integer);
  }
}
template <class T>
Word word_of(T value) {
  Word word{.integer = 0};
  if constexpr (std::is_same_v<T, float>) {
    word.real = value;
  } else {
    word.integer = value;
  }
  return word;
}

template <class T, auto kFunction>
void unary(Word* const* operands, int n) {
  for (int i = 0; i < n; ++i) {
    operands[0][i] = word_of(kFunction(get<T>(operands[0][i])));
  }
}
template <class T, auto kFunction>
void binary(Word* const* operands, int n) {
  for (int i = 0; i < n; ++i) {
    operands[0][i] = word_of(kFunction(get<T>(operands[0][i]), get<T>(operands[1][i])));
  }
}
template <class T>
void clamped(Word* const* operands, int n) {
  for (int i = 0; i < n; ++i) {
    operands[0][i] = word_of(
        variant::clamp(get<T>(operands[0][i]), get<T>(operands[1][i]), get<T>(operands[2][i])));
  }
}
void selected(Word* const* operands, int n) {
  for (int i = 0; i < n; ++i) {
    operands[0][i] = operands[0][i].integer != 0 ? operands[1][i] : operands[2][i];
  }
}

using Operations = std::map<std::string, NamedOperation, std::less<>>;

template <class T>
struct Adder {
  Operations& operations;
  std::string kind;

  template <auto kFunction>
  void one(char const* name) {
    operations[name + kind] = {unary<T, kFunction>, 1};
  }
  template <auto kFunction>
  void two(char const* name) {
    operations[name + kind] = {binary<T, kFunction>, 2};
  }

  void add_to_all() {
    if constexpr (std::is_same_v<T, float>) {
      one<[](float a) { return variant::to_integer<int>(a); }>("i32");
      one<[](float a) { return variant::to_integer<int64_t>(a); }>("i64");
    } else {
      one<[](T a) { return static_cast<int>(a); }>("i32");
      one<[](T a) { return static_cast<int64_t>(a); }>("i64");
    }
    one<[](T a) { return a != T(0); }>("bool");
    one<[](T a) { return static_cast<float>(a); }>("f32");
    two<[](T a, T b) { return (a < b); }>("<");
    two<[](T a, T b) { return (a <= b); }>("<=");
    two<[](T a, T b) { return (a > b); }>(">");
    two<[](T a, T b) { return (a >= b); }>(">=");
    two<[](T a, T b) { return a == b; }>("==");
    two<[](T a, T b) { return a != b; }>("!=");
    operations["where" + kind] = {selected, 3};
  }
  void add_to_numbers() {
    two<[](T a, T b) { return variant::minimum(a, b); }>("min");
    two<[](T a, T b) { return variant::maximum(a, b); }>("max");
    one<[](T a) { return variant::absolute(a); }>("abs");
    operations["clamp" + kind] = {clamped<T>, 3};
  }
  void add_to_integers() {
    two<[](T a, T b) { return variant::wrapping_add(a, b); }>("+");
    two<[](T a, T b) { return variant::wrapping_sub(a, b); }>("-");
    two<[](T a, T b) { return variant::wrapping_mul(a, b); }>("*");
    one<[](T a) { return variant::wrapping_sub(T(0), a); }>("neg");
    two<[](T a, T b) { return variant::floor_div(a, b); }>("//");
    two<[](T a, T b) { return variant::floor_mod(a, b); }>("%");
    two<[](T a, T b) { return variant::shift_left(a, b); }>("<<");
    two<[](T a, T b) { return variant::shift_right(a, b); }>(">>");
    one<[](T a) { return static_cast<T>(~a); }>("~");
    two<[](T a, T b) { return static_cast<T>(a & b); }>("&");
    two<[](T a, T b) { return static_cast<T>(a | b); }>("|");
    two<[](T a, T b) { return static_cast<T>(a ^ b); }>("^");
  }
  void add_to_floats() {
    two<[](float a, float b) { return a + b; }>("+");
    two<[](float a, float b) { return a - b; }>("-");
    two<[](float a, float b) { return a * b; }>("*");
    two<[](float a, float b) { return a / b; }>("/");
    one<[](float a) { return -a; }>("neg");
    one<[](float a) { return variant::rounded_to_f16(a); }>("f16");
    one<[](float a) { return variant::rounded_to_bf16(a); }>("bf16");
    one<[](float a) { return variant::exp(a); }>("exp");
    one<[](float a) { return variant::exp2(a); }>("exp2");
    one<[](float a) { return variant::log(a); }>("log");
    one<[](float a) { return variant::log2(a); }>("log2");
    one<[](float a) { return variant::tanh(a); }>("tanh");
    one<[](float a) { return variant::sigmoid(a); }>("sigmoid");
    one<[](float a) { return variant::sin(a); }>("sin");
    one<[](float a) { return variant::cos(a); }>("cos");
    one<[](float a) { return variant::erf(a); }>("erf");
    one<[](float a) { return variant::sqrt(a); }>("sqrt");
    one<[](float a) { return variant::rsqrt(a); }>("rsqrt");
    one<[](float a) { return variant::floor(a); }>("floor");
  }
  void add_to_bools() {
    one<[](bool a) { return !a; }>("~");
    two<[](bool a, bool b) { return a && b; }>("&");
    two<[](bool a, bool b) { return a || b; }>("|");
    two<[](bool a, bool b) { return a != b; }>("^");
  }
};

Operations all_operations() {
  Operations found;
  Adder<bool> bools{found, ".bool"};
  bools.add_to_all();
  bools.add_to_bools();
  auto const add_integers = [](auto adder) {
    adder.add_to_all();
    adder.add_to_numbers();
    adder.add_to_integers();
  };
  add_integers(Adder<int>{found, ".i32"});
  add_integers(Adder<int64_t>{found, ".i64"});
  Adder<float> floats{found, ".f32"};
  floats.add_to_all();
  floats.add_to_numbers();
  floats.add_to_floats();
  return found;
}

}  // namespace

NamedOperation find_operation(std::string_view name) {
  static Operations const operations = all_operations();
  auto const found = operations.find(name);
  require(found != operations.end(), "the variant has the operation '", name,
          "', which this version does not have: expected text that it wrote");
  return found->second;
}

}  // namespace pyflash
