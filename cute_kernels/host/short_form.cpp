#include "cute_kernels/host/short_form.h"

#include <charconv>

#include "cute_kernels/host/errors.h"

namespace pyflash {
namespace {

// Reads a text from left to right.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text), rest_(text) {}

  // Whether `token` came next, after blanks; then it is read.
  bool take(std::string_view token) {
    skip_blanks();
    if (!rest_.starts_with(token)) {
      return false;
    }
    rest_.remove_prefix(token.size());
    return true;
  }

  void expect(std::string_view token) {
    if (!take(token)) {
      fail(sentence("'", token, "'"));
    }
  }

  int expect_number(int at_least) {
    skip_blanks();
    int number = 0;
    auto const [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    if (error != std::errc{} || number < at_least) {
      fail(sentence("a number not below ", at_least));
    }
    rest_.remove_prefix(end - rest_.data());
    return number;
  }

  void expect_end() {
    skip_blanks();
    if (!rest_.empty()) {
      fail("the end");
    }
  }

  [[noreturn]] void fail(std::string_view expected) const {
    refuse("config '", text_, "' is not a short form: expected ", expected, " at '", rest_,
           "'; the form is '(FP16, 128, 64, 64, 4): ",
           "[async+][eager+][swizzled+]load_Q_K_V_tiles[+buffer][+opt_softmax]'");
  }

 private:
  void skip_blanks() {
    while (rest_.starts_with(' ') || rest_.starts_with('\t') || rest_.starts_with('\n')) {
      rest_.remove_prefix(1);
    }
  }

  std::string_view text_;
  std::string_view rest_;
};

DType expect_dtype(Scanner& scanner) {
  for (DType dtype : {DType::FP16, DType::BF16}) {
    if (scanner.take(name(dtype))) {
      return dtype;
    }
  }
  scanner.fail("FP16 or BF16");
}

}  // namespace

char const* name(DType dtype) { return dtype == DType::FP16 ? "FP16" : "BF16"; }

std::string short_form(FlashForwardKernelConfig const& c) {
  return sentence("(", name(c.dtype), ", ", c.d_head, ", ", c.B_r, ", ", c.B_c, ", ", c.n_warps,
                  "): ", c.async_copy ? "async+" : "", c.eager_load_blocks ? "eager+" : "",
                  c.swizzled ? "swizzled+" : "", "load_", c.Q_mma_load_K_tiles, "_",
                  c.K_mma_load_K_tiles, "_", c.V_mma_load_K_tiles, "_tiles",
                  c.mma_double_buffer_loads ? "+buffer" : "",
                  c.optimized_softmax ? "+opt_softmax" : "",
                  c.kv_stages > 1 ? sentence("+stages_", c.kv_stages) : "");
}

FlashForwardKernelConfig parse_short_form(std::string_view text) {
  Scanner scanner(text);
  FlashForwardKernelConfig config{};
  scanner.expect("(");
  config.dtype = expect_dtype(scanner);
  for (int* size : {&config.d_head, &config.B_r, &config.B_c, &config.n_warps}) {
    scanner.expect(",");
    *size = scanner.expect_number(1);
  }
  scanner.expect(")");
  scanner.expect(":");
  config.async_copy = scanner.take("async+");
  config.eager_load_blocks = scanner.take("eager+");
  config.swizzled = scanner.take("swizzled+");
  scanner.expect("load");
  for (int* count :
       {&config.Q_mma_load_K_tiles, &config.K_mma_load_K_tiles, &config.V_mma_load_K_tiles}) {
    scanner.expect("_");
    *count = scanner.expect_number(0);
  }
  scanner.expect("_tiles");
  config.mma_double_buffer_loads = scanner.take("+buffer");
  config.optimized_softmax = scanner.take("+opt_softmax");
  if (scanner.take("+stages_")) {
    config.kv_stages = scanner.expect_number(1);
  }
  scanner.expect_end();
  return config;
}

}  // namespace pyflash
