// Replaces this layer's other sources in builds without cuda.h. Nobody gets a driver, so nobody
// calls anything that needs one.
#include "cuda/driver.h"

namespace rueda {

Expected<const CudaDriver*> load_cuda(const Options&) {
  return Status(ErrorCode::initialization,
                "Rueda was built without CUDA. Build it again where CMake finds cuda.h: with a "
                "CUDA toolkit, or pip install nvidia-cuda-runtime nvidia-cuda-crt");
}

}  // namespace rueda
