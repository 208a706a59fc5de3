// The launcher of kernel libraries with a CUDA runtime that launches nothing: prints what it is asked for, a line each.
//   PROGRAM SHORT_FORM BATCH HEADS HEADS_KV SEQLEN_Q SEQLEN_K NUM_SPLITS
//   PROGRAM "lasting memory"
//   PROGRAM "second stream"
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <variant>

#include "cute_kernels/host/short_form.h"
#include "cute_kernels/kernel_library.h"
#include "cute_kernels/second_stream.h"

namespace {

int const kernel = 0;      // its address is what is launched
bool has_context = false;  // this thread
char q_element, k_element, v_element;

CUresult get_current_context(CUcontext* context) {
  *context = has_context ? reinterpret_cast<CUcontext>(0x99) : nullptr;
  return CUDA_SUCCESS;
}

// As the driver does: refuses a thread without a context.
CUresult encode(CUtensorMap*, CUtensorMapDataType type, cuuint32_t rank, void* base,
                cuuint64_t const* extents, cuuint64_t const* strides, cuuint32_t const* box,
                cuuint32_t const*, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  if (!has_context) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  char const* const tensor = base == &q_element   ? "Q"
                             : base == &k_element ? "K"
                             : base == &v_element ? "V"
                                                  : "nothing";
  std::printf("map of %s, %s, swizzle %s:", tensor,
              type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 ? "FP16" : "BF16",
              swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? "128B" : "64B");
  for (cuuint32_t i = 0; i < rank; ++i) {
    std::printf(" %llu of %llu by %llu", (unsigned long long)box[i], (unsigned long long)extents[i],
                (unsigned long long)(i == 0 ? 2 : strides[i - 1]));
  }
  std::printf("\n");
  return CUDA_SUCCESS;
}

}  // namespace

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  std::printf("set device %d\n", device);
  has_context = true;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  char const* const text = std::getenv("DRIVER_VERSION");
  *version = text ? std::atoi(text) : 13000;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? 132 : 0;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(void const* function, cudaFuncAttribute attribute, int value) {
  bool const is_smem = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize;
  std::printf("set %s %d\n", is_smem ? "smem" : "non-portable clusters", value);
  return function == &kernel ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

cudaError_t cudaLaunchKernel(void const*, dim3 grid, dim3 block, void**, size_t smem_bytes,
                             cudaStream_t stream) {
  std::printf("launch %u x %u, %zu bytes, stream %p\n", grid.x, block.x, smem_bytes, (void*)stream);
  return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(cudaLaunchConfig_t const* launch, void const*, void**) {
  std::printf("launch %u x %u, %zu bytes, stream %p", launch->gridDim.x, launch->blockDim.x,
              launch->dynamicSmemBytes, (void*)launch->stream);
  for (unsigned i = 0; i < launch->numAttrs; ++i) {
    cudaLaunchAttribute const& attribute = launch->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      std::printf(", clusters of %u", attribute.val.clusterDim.x);
    } else if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization) {
      std::printf(", early %d", attribute.val.programmaticStreamSerializationAllowed);
    }
  }
  std::printf("\n");
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(char const* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  bool const is_encoder = std::string_view(name) == "cuTensorMapEncodeTiled";
  *function =
      is_encoder ? reinterpret_cast<void*>(encode) : reinterpret_cast<void*>(get_current_context);
  *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t*, void const*, cudaJitOption*, void**, unsigned,
                                cudaLibraryOption*, void**, unsigned) {
  return cudaErrorNotSupported;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t*, cudaLibrary_t, char const*) {
  return cudaErrorNotSupported;
}

char const* cudaGetErrorString(cudaError_t) { return "an error"; }

// The call that FAILS names fails.
cudaError_t answer(char const* call) {
  char const* const failing = std::getenv("FAILS");
  bool const fails = failing != nullptr && std::string_view(failing) == call;
  std::printf("%s%s\n", call, fails ? " fails" : "");
  return fails ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  bool const is_captured = std::getenv("CAPTURED") != nullptr;
  *status = is_captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return answer("is it captured");
}
cudaError_t cudaStreamGetId(cudaStream_t, unsigned long long* number) {
  *number = 1234;
  return answer("its number");
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  std::printf("waits for the default stream %d: ", (flags & cudaStreamNonBlocking) == 0);
  cudaError_t const error = answer("make a stream");
  *stream = error == cudaSuccess ? reinterpret_cast<cudaStream_t>(0x44) : nullptr;
  return error;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::printf("stream %p: ", (void*)stream);
  return answer("destroy");
}
// FIRST_IN, SECOND_IN: the graphs that the streams 0x77 and 0x44 are part of.
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* graph, cudaGraph_t*,
                                     cudaGraphNode_t const**, cudaGraphEdgeData const**, size_t*) {
  bool const is_first = stream == reinterpret_cast<cudaStream_t>(0x77);
  char const* const found = std::getenv(is_first ? "FIRST_IN" : "SECOND_IN");
  *status = found != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  *graph = found != nullptr ? std::atoi(found) : 0;
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** data, size_t bytes, cudaStream_t stream) {
  *data = &q_element;
  std::printf("%zu bytes, stream %p: ", bytes, (void*)stream);
  return answer("allocate");
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  std::printf("%s, stream %p: ", data == &q_element ? "it" : "nothing", (void*)stream);
  return answer("free");
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = reinterpret_cast<cudaEvent_t>(0x55);
  std::printf("timing %d: ", (flags & cudaEventDisableTiming) == 0);
  return answer("make an event");
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  std::printf("event %p, stream %p: ", (void*)event, (void*)stream);
  return answer("record");
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  std::printf("event %p, stream %p: ", (void*)event, (void*)stream);
  return answer("wait");
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  std::printf("event %p: ", (void*)event);
  return answer("destroy");
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  static cudaStreamCaptureMode of_thread = cudaStreamCaptureModeGlobal;
  std::swap(*mode, of_thread);
  return answer(of_thread == cudaStreamCaptureModeRelaxed ? "relaxed" : "as before");
}
cudaError_t cudaGetLastError() { return answer("forget the error"); }

// Takes memory that lasts, notes two uses of it, and gives it back.
void use_lasting_memory() {
  auto const calls = pyflash::make_library({}).lasting_memory;
  void* const stream = reinterpret_cast<void*>(0x77);
  uint64_t number = 0;
  if (calls.number_of(stream, &number) != 0) {
    return;
  }
  std::printf("stream %d\n", int(number));
  pyflash::LastingMemory memory;
  if (calls.take(640, stream, &memory) == 0) {
    calls.note_use(memory, stream);
    calls.note_use(memory, stream);
    calls.give_back(memory, reinterpret_cast<void*>(0x88));
  }
}

// Begins and ends work beside a stream, twice.
void use_second_stream() {
  auto const first = reinterpret_cast<cudaStream_t>(0x77);
  for (int i = 0; i < 2; ++i) {
    pyflash::SecondStream* second = nullptr;
    cudaStream_t stream = nullptr;
    if (pyflash::SecondStream::of_this_thread(second) != cudaSuccess ||
        second->begin(first, stream) != cudaSuccess) {
      return;
    }
    std::printf("work in %p\n", (void*)stream);
    second->end(first, stream);
  }
}

int pyflash::list_tiles(ListedForwardParams const& params, DType, void* stream) {
  std::printf("list tiles of %d queries, stream %p\n", params.tile_queries, stream);
  return 0;
}

int pyflash::list_shares(ListedForwardParams const& params, DType, void* stream) {
  std::printf("list %d shares, stream %p\n", params.n_shares, stream);
  return 0;
}

int pyflash::merge_shares(ListedForwardParams const& params, DType, void* stream) {
  std::printf("merge parts of %d rows, stream %p\n", params.rows_of_part(), stream);
  return 0;
}

int pyflash::merge_splits(ListedForwardParams const& params, DType, void* stream) {
  std::printf("merge %d splits, stream %p\n", params.num_splits, stream);
  return 0;
}

int pyflash::preprocess_backward(BackwardParams const&, DType, void*) { return 0; }
int pyflash::postprocess_backward(BackwardParams const&, DType, void*) { return 0; }

int main(int, char** argv) {
  using namespace pyflash;
  has_context = std::getenv("NO_CONTEXT") == nullptr;
  if (std::string_view(argv[1]) == "lasting memory") {
    use_lasting_memory();
    return 0;
  }
  if (std::string_view(argv[1]) == "second stream") {
    use_second_stream();
    return 0;
  }
  ArchCtas const ctas{90, 2};
  OpKernels<Forward> const kernels = make_library({}).of<Forward>();
  ConfigMapRow<Forward> row{};
  row.config = parse_short_form_of<Forward>(argv[1]);
  std::visit([&](auto const& config) { row.dtype = config.dtype, row.d_head = config.d_head; },
             row.config);
  row.n_threads = 384;
  row.smem_bytes = 1024;
  row.ctas_per_sm = {&ctas, 1};
  kernels.describe(row);
  std::printf("row %d %d\n", int(row.shape.packs_heads), row.shape.max_cluster);

  ListedForwardParams params{};
  params.q = &q_element;
  params.batch = std::atoi(argv[2]);
  params.heads = std::atoi(argv[3]);
  int const heads_kv = std::atoi(argv[4]);
  int const seqlen_q = std::atoi(argv[5]), seqlen_k = std::atoi(argv[6]);
  // Packed: sequences of these lengths, of which nothing is read.
  static int const starts[] = {0};
  bool const packed = std::getenv("PACKED") != nullptr;
  auto const sequences = [&](int seqlen) {
    char const* const total =
        std::getenv("TOTAL");  // of sequences that are shorter than the longest
    return packed
               ? Sequences::packed(starts, seqlen, total ? std::atoi(total) : params.batch * seqlen)
               : Sequences::padded(seqlen);
  };
  params.set_q_sequences(sequences(seqlen_q));
  params.num_splits = std::atoi(argv[7]);
  params.cluster = params.num_splits <= row.shape.max_cluster ? params.num_splits : 1;
  params.d_head = row.d_head;
  auto const strides = [&](int heads, int seqlen) {  // an extent of 0 counts as 1, as in torch
    int64_t const of_row = int64_t(heads > 0 ? heads : 1) * row.d_head;
    return TensorStrides{of_row * (seqlen > 0 ? seqlen : 1), of_row, row.d_head};
  };
  params.q_strides = strides(params.heads, seqlen_q);
  TensorStrides strides_v = strides(heads_kv, seqlen_k);
  if (std::getenv("HEADS_OF_V_FIRST") != nullptr) {
    strides_v.row = row.d_head;
    strides_v.head = int64_t(seqlen_k) * row.d_head;
  }
  params.set_kv({.k = {&k_element, strides(heads_kv, seqlen_k)},
                 .v = {&v_element, strides_v},
                 .sequences = sequences(seqlen_k),
                 .heads = heads_kv});
  params.set_mask({.window_left = kNoWindow, .window_right = kNoWindow});
  list_uneven_tiles(params, row.shape);
  if (char const* const reason = row.refusal ? row.refusal(row, params) : nullptr) {
    std::printf("refused: %s\n", reason);
    return 0;
  }
  std::printf("returned %d\n", kernels.run(&kernel, row, params, reinterpret_cast<void*>(0x77)));
}
