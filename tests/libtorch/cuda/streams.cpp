// Only compiled, with the headers of CUDA and as if for a torch with CUDA: what rueda/torch.h does
// where torch itself does not tell a stream's native handle, though this torch may.
#include <rueda/torch.h>

namespace rueda::libtorch::detail {

static_assert(has_cuda_headers, "cuda_runtime_api.h and c10/cuda/impl/cuda_cmake_macros.h");
static_assert(knows_streams);

struct Silent {};
static_assert(!TellsHandles<Silent>);

// As in versions whose devices do not tell.
[[nodiscard]] void* handle_of(c10::Stream stream);
void* handle_of(c10::Stream stream) {
  return native_handle(Silent(), stream);
}

}  // namespace rueda::libtorch::detail
