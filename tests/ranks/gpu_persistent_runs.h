// Persistent allreduces of tensors on the test doubles' GPUs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/persistent_kinds.h"
#include "ranks/gpu_engine_ranks.h"

namespace rueda::test {

using Run = OwnedPersistentRun;

// Elements of each tensor.
inline constexpr std::size_t count = 5000;

// A run on this tensor; in place if `output` is null.
inline Run persistent(GpuEngine& gpu, const DeviceMemory& memory, const AllreduceOptions& options,
                      std::byte* output = nullptr, DataType dtype = DataType::float32) {
  const auto elements = static_cast<std::int64_t>(memory.size() / size_of(dtype));
  const TensorView view{memory.data(),
                        {elements},
                        dtype,
                        gpu.stream().device()->facts().ordinal,
                        gpu.stream().handle()};
  const std::shared_ptr<Runtime> engine(std::shared_ptr<void>(), &gpu.engine);
  return PersistentAgreement(engine, view, output != nullptr ? output : memory.data(), options)
      .make_run();
}

inline void write(GpuEngine& gpu, const DeviceMemory& memory, float value) {
  const std::vector<float> values(memory.size() / sizeof(float), value);
  expect_ok(copy_to_device(gpu.stream(), memory.data(),
                           reinterpret_cast<const std::byte*>(values.data()), memory.size()),
            "write");
}

inline void expect_all(GpuEngine& gpu, const std::byte* memory, float value,
                       const std::string& what) {
  const auto result = gpu.read<float>(memory, count);
  expect(result == std::vector<float>(count, value),
         str(what, ": ", result.front(), " instead of ", value));
}

inline void run(PersistentRun& operation) {
  operation.start(std::nullopt);
  operation.wait();
}

// The text of the error that `call` throws, or "none".
inline std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

// A barrier.
inline void meet(GpuEngine& gpu, const std::string& name) {
  std::vector<float> nothing(1);
  test::finish(test::submit(gpu.engine, allreduce_of(nothing, DataType::float32, name)));
}

// The sum of rank + 1 over the ranks.
inline float sum_of(int size) {
  return static_cast<float>(size * (size + 1) / 2);
}

}  // namespace rueda::test
