#include "cute_kernels/emulator/faults.h"

#include <array>
#include <cstddef>

namespace pyflash::emulator {

namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr std::array kSignals = {SIGSEGV, SIGBUS};

FaultHandler* current_handler = nullptr;
std::array<struct sigaction, kSignals.size()> old_actions;

void on_signal(int, siginfo_t* info, void*) { current_handler->on_fault(info->si_addr); }

}  // namespace

FaultsGoTo::FaultsGoTo(FaultHandler& handler) : stack_(new char[kStackBytes]) {
  current_handler = &handler;
  stack_t stack{};
  stack.ss_sp = stack_.get();
  stack.ss_size = kStackBytes;
  sigaltstack(&stack, &old_stack_);
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  // NOTE: the handler may leave by switching to another stack, so the signal must not stay blocked.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &action, &old_actions[i]);
  }
}

FaultsGoTo::~FaultsGoTo() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &old_actions[i], nullptr);
  }
  sigaltstack(&old_stack_, nullptr);
  current_handler = nullptr;
}

}  // namespace pyflash::emulator
