// The parts of a ConfigDescription: what host code needs to know of a config type to read and print its short form.
// The descriptions themselves are emitted, from those in pyflash/config, into cute_kernels/generated/configs.h.
//
// A short form is "(FP16, 128, 64, 64, 4): async+load_0_2_2_tiles": the tile in its parenthesis, then words joined by +,
// in the order of the description. The first word is the family's tag, where it has one.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

// Specialised for each config type C, with its op as a type, Op, and static constexpr members
//   name    "FlashForwardKernelConfig"
//   family  "sm80_forward"
//   tag     "", or the word that every short form of the family begins with
//   form    how a short form looks, for messages
//   tile    a tuple of Enum and Int
//   words   a tuple of Flag and Number
template <class Config>
struct ConfigDescription;

// Specialised for each op, with the type Any, a variant of the configs of its families, and kFallbacks, an array of them.
template <class Op>
struct ConfigsOf;

// Specialised for each enumeration E: `values`, an array of EnumValue<E>.
template <class E>
struct EnumDescription;

namespace pyflash {

template <class... Ops>
struct OpList {};

}  // namespace pyflash

namespace pyflash::description {

template <class E>
struct EnumValue {
  char const* name;
  E value;
};

// An enumeration of the tile, written by the name of its value.
template <class Config, class E>
struct Enum {
  char const* name;
  E Config::* field;
};

// An integer, of the tile or of a word.
template <class Config>
struct Int {
  char const* name;
  int Config::* field;
  int least;
  std::optional<int> otherwise =
      {};  // its value where the word is left out; none: the word has to be there
};

// A word that is there where the field is true.
template <class Config>
struct Flag {
  char const* word;
  bool Config::* field;
};

// A word with numbers in it: pieces[0], values[0], pieces[1], ... It is left out where every value is its `otherwise`.
template <class Config, std::size_t N>
struct Number {
  char const* label;  // in messages: "load_Q_K_V_tiles"
  std::array<char const*, N + 1> pieces;
  std::array<Int<Config>, N> values;
};

}  // namespace pyflash::description
