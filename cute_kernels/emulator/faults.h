// Turns a memory fault of an emulated kernel into a call.
#pragma once

#include <signal.h>

#include <memory>

namespace pyflash::emulator {

class FaultHandler {
 public:
  virtual ~FaultHandler() = default;
  // Called on a stack of its own, which it must leave for another.
  virtual void on_fault(void* address) = 0;
};

// Faults go to `handler` while this exists.
class FaultsGoTo {
 public:
  explicit FaultsGoTo(FaultHandler& handler);
  ~FaultsGoTo();
  FaultsGoTo(FaultsGoTo const&) = delete;
  FaultsGoTo& operator=(FaultsGoTo const&) = delete;

 private:
  std::unique_ptr<char[]> stack_;
  stack_t old_stack_;
};

}  // namespace pyflash::emulator
