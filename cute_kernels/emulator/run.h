// A call of an op by name, as other languages make it, and the kernels that it runs in a row.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cute_kernels/emulator/emulator.h"
#include "cute_kernels/host/call.h"
#include "cute_kernels/host/options.h"
#include "cute_kernels/host/tensor_view.h"

namespace pyflash::emulator {

class Run {
 public:
  Run(EmulatedKernel const& kernel, Order order, uint64_t seed)
      : kernel_(kernel), order_(order), seed_(seed) {}
  virtual ~Run() = default;

  // False: the op takes nothing of this name and type.
  bool set_tensor(char const* name, void const* data, int rank, int64_t const* shape,
                  int64_t const* strides, ElementType dtype);
  bool set_integer(char const* name, int64_t value);
  bool set_float(char const* name, double value);

  // Checks and normalises the arguments as the op does. Throws what it refuses.
  virtual void prepare(char const* config, DType dtype, int d_head) = 0;
  // What the kernels get, as JSON.
  virtual std::string problem() const = 0;
  virtual int n_parts() const { return 1; }
  // As many as the op has.
  virtual void set_outputs(void* const* outputs) = 0;

  virtual int n_phases() const { return 1; }
  // The phase whose kernel is the config's own.
  virtual int own_phase() const { return 0; }
  virtual char const* phase_name(int) const { return ""; }
  // From here on the emulator is that of the phase. Returns why there is nothing to run, or nullptr.
  char const* begin_phase(int phase);
  // All CTAs of the phase ran to their ends.
  void finish_phase() {
    emulator_->finish();
    after_phase(phase_);
  }

  Emulator& emulator() { return *emulator_; }
  Launch const& launch() const { return launch_; }

 protected:
  virtual bool takes_tensor(std::string_view name) const;
  // What a variant captures: its tensors are "variant 0", "variant 1" and so on.
  variant::Arguments captured() const;
  virtual EmulatedKernel const& kernel_of(int) const { return kernel_; }
  // Maps what the phase's kernel reads and writes.
  virtual Launch launch_of(int phase, Emulator& emulator) = 0;
  virtual void after_phase(int) {}

  TensorView view(char const* name) const;
  std::optional<TensorView> optional_view(char const* name) const;
  // The call of op forward, or of the forward pass.
  Call call() const;
  int n_resident() const;
  // The rows of the sequences that a list of tiles has.
  int least_listed_rows() const { return static_cast<int>(least_listed_rows_); }
  bool runs_beside() const { return runs_beside_ != 0; }
  int listed_ctas() const { return static_cast<int>(listed_ctas_); }

  EmulatedKernel const& kernel_;

 private:
  struct Tensor {
    void const* data;
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;
    ElementType dtype;
  };

  Order order_;
  uint64_t seed_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  int64_t max_seqlen_q_ = 0;
  int64_t max_seqlen_k_ = 0;
  int64_t resident_ctas_ = 132;  // of an H100 or H200
  int64_t least_listed_rows_ = 0;
  int64_t runs_beside_ = 0;
  int64_t listed_ctas_ = kNoWindow;  // that take listed tiles
  Options options_;
  std::vector<double> reals_;  // of a variant, as the integers
  std::vector<int64_t> integers_;
  std::unique_ptr<Emulator> emulator_;
  Launch launch_;
  int phase_ = 0;
};

// The run of the op of the kernel's config.
std::unique_ptr<Run> new_run(EmulatedKernel const& kernel, Order order, uint64_t seed);
std::unique_ptr<Run> new_backward_run(EmulatedKernel const& kernel, Order order, uint64_t seed);

}  // namespace pyflash::emulator
