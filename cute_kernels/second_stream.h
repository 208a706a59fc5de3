// A stream beside the caller's, for what may run side by side with the rest of a call.
#pragma once

#include <map>

#include <cuda_runtime_api.h>

#include "cute_kernels/op.h"

namespace pyflash {

// While it lives, this thread may create, allocate and free though another one captures a graph.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(RelaxedCapture const&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Of a thread and a device. Its work comes after all that is in the caller's stream, and before all that follows there.
class SecondStream {
 public:
  SecondStream() = default;
  SecondStream(SecondStream const&) = delete;
  ~SecondStream() {
    for (cudaEvent_t const event : {begun_, ended_}) {
      if (event != nullptr) {
        cudaEventDestroy(event);
      }
    }
    if (stream_ != nullptr) {
      cudaStreamDestroy(stream_);
    }
  }

  static cudaError_t of_this_thread(SecondStream*& found) {
    static thread_local std::map<int, SecondStream> of_devices;
    int device = 0;
    cudaError_t const error = cudaGetDevice(&device);
    found = &of_devices[device];
    return error == cudaSuccess ? found->create() : error;
  }

  // stream: in which to launch what may run beside the work in `first`: `first` itself while this one is part of another graph.
  cudaError_t begin(cudaStream_t first, cudaStream_t& stream) {
    bool is_free = false;
    cudaError_t error = is_free_for(first, is_free);
    stream = is_free ? stream_ : first;
    if (error == cudaSuccess && is_free) {
      error = order(begun_, first, stream_);
    }
    return error;
  }
  // stream: as begin() gave it.
  cudaError_t end(cudaStream_t first, cudaStream_t stream) {
    return stream == first ? cudaSuccess : order(ended_, stream, first);
  }

 private:
  cudaError_t create() {
    if (stream_ != nullptr) {
      return cudaSuccess;
    }
    RelaxedCapture const relaxed;
    for (cudaEvent_t* const event : {&begun_, &ended_}) {
      cudaError_t const error =
          *event != nullptr ? cudaSuccess : cudaEventCreateWithFlags(event, cudaEventDisableTiming);
      if (error != cudaSuccess) {
        return error;
      }
    }
    return cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  }
  cudaError_t is_free_for(cudaStream_t first, bool& is_free) const {
    cudaStreamCaptureStatus status{}, status_of_first{};
    unsigned long long graph = 0, graph_of_first = 0;
    cudaError_t error = cudaStreamGetCaptureInfo(stream_, &status, &graph);
    if (error == cudaSuccess) {
      error = cudaStreamGetCaptureInfo(first, &status_of_first, &graph_of_first);
    }
    is_free = status == cudaStreamCaptureStatusNone ||
              (status == status_of_first && graph == graph_of_first);
    return error;
  }
  static cudaError_t order(cudaEvent_t event, cudaStream_t before, cudaStream_t after) {
    cudaError_t const error = cudaEventRecord(event, before);
    return error == cudaSuccess ? cudaStreamWaitEvent(after, event, 0) : error;
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t begun_ = nullptr;
  cudaEvent_t ended_ = nullptr;
};

// Calls run(params, stream) for each slice of a problem, in turns in two streams where two slices may run side by side. Returns its
// first error.
template <class Params, class Run>
int run_slices_in_streams(Params const& params, void* stream, Run const& run) {
  auto const first = static_cast<cudaStream_t>(stream);
  cudaStream_t second = first;
  SecondStream* beside = nullptr;
  if constexpr (requires { params.n_slices_at_a_time(); }) {
    if (params.n_slices_at_a_time() > 1) {
      cudaError_t error = SecondStream::of_this_thread(beside);
      if (error == cudaSuccess) {
        error = beside->begin(first, second);
      }
      if (error != cudaSuccess) {
        return error;
      }
    }
  }
  int i = 0;
  int const failed = run_slices(
      params, [&](Params const& slice) { return run(slice, i++ % 2 == 0 ? first : second); });
  cudaError_t const ended = beside != nullptr ? beside->end(first, second) : cudaSuccess;
  return failed != cudaSuccess ? failed : int(ended);
}

}  // namespace pyflash
