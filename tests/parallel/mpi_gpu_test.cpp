// All-reductions of tensors of GPUs that are handed to MPI. There is no MPI here that was built
// with CUDA: the double of the driver gives out memory that the host can use, which is what such an
// MPI makes of any.
#include <rueda/rueda.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "rank_main.h"
#include "unit/cuda_fixture.h"

using namespace rueda;
using namespace rueda::test;

namespace {

std::int64_t mpi_calls() {
  return metrics().at("mpi_calls");
}

// Small whole numbers: exact in any type and order.
template <class T>
std::vector<T> values_of(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(static_cast<int>(i % 3) + rank % 2 + 1);
  }
  return values;
}

template <class T>
T combine(ReduceOp op, T left, T right) {
  switch (op) {
    case ReduceOp::product: return static_cast<T>(left * right);
    case ReduceOp::min: return std::min(left, right);
    case ReduceOp::max: return std::max(left, right);
    default: return static_cast<T>(left + right);
  }
}

template <class T>
std::vector<T> combined(ReduceOp op, std::size_t count, double factor = 1.0) {
  std::vector<T> result = values_of<T>(0, count);
  for (int rank = 1; rank < size(); ++rank) {
    const auto other = values_of<T>(rank, count);
    for (std::size_t i = 0; i < count; ++i) result[i] = combine(op, result[i], other[i]);
  }
  for (T& value : result) value = static_cast<T>(static_cast<double>(value) * factor);
  return result;
}

class Tensors {
 public:
  Tensors()
      : device_(CudaFixture::device(0)), stream_(take(CudaStream::create(device_), "stream")) {}

  template <class T>
  DeviceMemory tensor(const std::vector<T>& content) const {
    return on_device(stream_, content);
  }
  [[nodiscard]] TensorView view(const DeviceMemory& memory, std::size_t count,
                                DataType dtype) const {
    return {memory.data(), {static_cast<std::int64_t>(count)}, dtype, 0, stream_.handle()};
  }
  template <class T>
  std::vector<T> read(const DeviceMemory& memory, std::size_t count) const {
    return on_host<T>(stream_, memory.data(), count);
  }
  template <class T>
  void reduces(DataType dtype, std::size_t count, ReduceOp op, bool by_mpi,
               const std::string& what) const {
    const DeviceMemory memory = tensor(values_of<T>(rank(), count));
    const std::int64_t before = mpi_calls();
    allreduce(view(memory, count, dtype), memory.data(), {.op = op}).wait_on(stream_.handle());
    const double factor = op == ReduceOp::average ? 1.0 / size() : 1.0;
    expect(read<T>(memory, count) == combined<T>(op, count, factor), what);
    expect((mpi_calls() > before) == (by_mpi && size() > 1), what + ": by MPI or staged");
  }

  const CudaStream& stream() const { return stream_; }

 private:
  DeviceReference device_;
  CudaStream stream_;
};

void types_and_operations(const Tensors& gpu) {
  gpu.reduces<float>(DataType::float32, 1000, ReduceOp::sum, true, "a sum");
  gpu.reduces<float>(DataType::float32, 1, ReduceOp::product, true, "a product of one");
  gpu.reduces<double>(DataType::float64, 77, ReduceOp::average, true, "an average");
  gpu.reduces<std::int32_t>(DataType::int32, 5, ReduceOp::min, true, "a minimum");
  gpu.reduces<std::int64_t>(DataType::int64, 5, ReduceOp::max, true, "a maximum");
  gpu.reduces<std::uint8_t>(DataType::uint8, 300, ReduceOp::sum, true, "bytes");
  // Not with MPI's results: NaN in a minimum, and bits.
  gpu.reduces<float>(DataType::float32, 10, ReduceOp::min, false, "a minimum of floats");
}

// Beyond a part, whose size RUEDA_FUSION_THRESHOLD is.
void many_parts(const Tensors& gpu) {
  const std::size_t count = (3 << 18) + 5;  // 3 MiB and some
  const std::int64_t before = mpi_calls();
  gpu.reduces<float>(DataType::float32, count, ReduceOp::sum, true, "several parts");
  expect(mpi_calls() == before + (size() > 1 ? 4 : 0), "a call for each part of 1 MiB");
}

void groups_and_factors(const Tensors& gpu) {
  std::vector<DeviceMemory> memory;
  std::vector<TensorView> views;
  std::vector<void*> outputs;
  for (const std::size_t count : {3U, 0U, 1000U}) {
    memory.push_back(gpu.tensor(values_of<float>(rank(), count)));
    views.push_back(gpu.view(memory.back(), count, DataType::float32));
    outputs.push_back(memory.back().data());
  }
  const std::int64_t before = mpi_calls();
  for (const Handle& handle : grouped_allreduce(
           views, outputs, {.op = ReduceOp::sum, .prescale_factor = 0.5, .postscale_factor = 4})) {
    handle.wait_on(gpu.stream().handle());
  }
  expect(gpu.read<float>(memory[0], 3) == combined<float>(ReduceOp::sum, 3, 2), "first of a group");
  expect(gpu.read<float>(memory[2], 1000) == combined<float>(ReduceOp::sum, 1000, 2), "last of it");
  expect(mpi_calls() == before + (size() > 1 ? 1 : 0), "one call for a group");
}

// 16-bit floats: 1.5 and its sums are exact.
void halves(const Tensors& gpu) {
  const std::uint16_t one_and_a_half = 0x3fc0;  // bfloat16
  const DeviceMemory memory = gpu.tensor(std::vector<std::uint16_t>(100, one_and_a_half));
  allreduce(gpu.view(memory, 100, DataType::bfloat16), memory.data(), {.op = ReduceOp::sum})
      .wait_on(gpu.stream().handle());
  for (const std::uint16_t bits : gpu.read<std::uint16_t>(memory, 100)) {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value = 0;
    std::memcpy(&value, &wide, sizeof value);
    expect(value == 1.5F * static_cast<float>(size()), str("a sum of bfloat16: ", value));
  }
}

void what_is_staged(const Tensors& gpu) {
  const std::int64_t before = mpi_calls();
  const DeviceMemory memory = gpu.tensor(std::vector<float>(2, static_cast<float>(rank())));
  const Handle gathered = allgather(gpu.view(memory, 2, DataType::float32));
  gathered.wait_on(gpu.stream().handle());
  const auto all = static_cast<std::size_t>(2 * size());
  const auto result = on_host<float>(gpu.stream(), gathered.output().data.get(), all);
  for (std::size_t i = 0; i < all; ++i) expect(result[i] == static_cast<float>(i / 2), "gathered");
  gathered.release_output(gpu.stream().handle());
  if (size() > 1) {
    const ProcessSet first = add_process_set({0});
    if (rank() == 0) {
      const DeviceMemory own = gpu.tensor(std::vector<float>(4, 3));
      allreduce(gpu.view(own, 4, DataType::float32), own.data(), {.process_set = first})
          .wait_on(gpu.stream().handle());
      expect(gpu.read<float>(own, 4) == std::vector<float>(4, 3), "a set of its own");
    }
    remove_process_set(first);
  }
  expect(mpi_calls() == before, "not by MPI");
}

// As long as MPI does not say, or nobody says for it, that it can.
void is_refused() {
  const Tensors gpu;
  const DeviceMemory memory = gpu.tensor(std::vector<float>(4, 1));
  std::string error = "none";
  try {
    allreduce(gpu.view(memory, 4, DataType::float32), memory.data(), {.name = "t"}).wait();
  } catch (const UnsupportedError& refused) {
    error = refused.what();
  }
  expect_contains(error, "RUEDA_GPU_BACKEND=mpi, but on rank 0 this MPI says");
  expect_contains(error, "RUEDA_MPI_GPU_MEMORY=on");
  expect_ok(gpu.stream().wait_until_idle(soon()), "the stream");
}

// What the stream does for so long before it goes on.
void hold_up(const CudaStream& stream, std::chrono::milliseconds time) {
  cuda_double().enqueue(stream.handle(), [time] { std::this_thread::sleep_for(time); });
}

// MPI's calls have one order: what is done in another process set, also of all ranks, has its own.
void two_sets_of_all(const Tensors& gpu) {
  std::vector<int> all(static_cast<std::size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  const ProcessSet set = add_process_set(all);
  const Tensors other;
  for (int round = 0; round < 3; ++round) {
    const DeviceMemory first = gpu.tensor(std::vector<float>(1000, 1));
    const DeviceMemory second = other.tensor(std::vector<float>(1000, 100));
    // Which of them is ready first differs between the ranks.
    hold_up((rank() % 2 == 0 ? gpu : other).stream(), std::chrono::milliseconds(30));
    const Handle of_world = allreduce(gpu.view(first, 1000, DataType::float32), first.data(),
                                      {.name = "a", .op = ReduceOp::sum});
    const Handle of_set = allreduce(other.view(second, 1000, DataType::float32), second.data(),
                                    {.name = "b", .op = ReduceOp::sum, .process_set = set});
    of_world.wait_on(gpu.stream().handle());
    of_set.wait_on(other.stream().handle());
    const auto ranks = static_cast<float>(size());
    expect(gpu.read<float>(first, 1000) == std::vector<float>(1000, ranks), "of the world");
    expect(other.read<float>(second, 1000) == std::vector<float>(1000, 100 * ranks), "of the set");
  }
  remove_process_set(set);
}

// The memory that MPI reduces grows while streams still copy from what it was before.
void grows(const Tensors& gpu) {
  std::vector<DeviceMemory> memory;
  std::vector<Handle> handles;
  for (std::size_t mebibytes = 1; mebibytes <= 8; mebibytes *= 2) {
    const std::size_t count = mebibytes << 18;
    memory.push_back(gpu.tensor(std::vector<float>(count, 1)));
    handles.push_back(allreduce(gpu.view(memory.back(), count, DataType::float32),
                                memory.back().data(), {.op = ReduceOp::sum}));
    handles.back().wait();
  }
  for (std::size_t i = 0; i < handles.size(); ++i) {
    handles[i].wait_on(gpu.stream().handle());
    const std::size_t count = memory[i].size() / sizeof(float);
    expect(
        gpu.read<float>(memory[i], count) == std::vector<float>(count, static_cast<float>(size())),
        "after it has grown");
  }
}

// The last rank kills itself when MPI has an operation on the others.
[[noreturn]] void loses_a_rank() {
  const Tensors gpu;
  gpu.reduces<float>(DataType::float32, 1000, ReduceOp::sum, true, "as long as all are there");
  const DeviceMemory memory = gpu.tensor(values_of<float>(rank(), 1000));
  const bool dies = rank() == size() - 1;
  const std::int64_t before = mpi_calls();
  if (dies) hold_up(gpu.stream(), std::chrono::seconds(60));
  const Handle handle = allreduce(gpu.view(memory, 1000, DataType::float32), memory.data());
  if (dies) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    std::raise(SIGKILL);
  }
  std::string error = "none";
  try {
    handle.wait();
  } catch (const PeerLostError& lost) {
    error = lost.what();
  }
  expect_contains(error, str("rank ", size() - 1));
  expect(mpi_calls() == before + 1, "MPI had it");
  shutdown();
  expect_ok(gpu.stream().wait_until_idle(soon()), "the stream goes on");
  std::printf("survivor done\n");
  std::fflush(stdout);
  std::_Exit(0);  // without MPI_Finalize, which is for worlds that are whole
}

// The last rank gives up while MPI waits for it on the others: their threads in MPI never return,
// and neither would MPI_Finalize.
void leaves_threads_behind() {
  const Tensors gpu;
  const DeviceMemory memory = gpu.tensor(values_of<float>(rank(), 1000));
  const bool gives_up = rank() == size() - 1;
  if (gives_up) hold_up(gpu.stream(), std::chrono::seconds(3));
  const Handle handle = allreduce(gpu.view(memory, 1000, DataType::float32), memory.data());
  std::string error = "none";
  if (gives_up) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    abort("enough");
  }
  try {
    handle.wait();
  } catch (const PeerLostError& lost) {
    error = lost.what();
  }
  expect_contains(error, "enough");
  if (!gives_up) expect(mpi_calls() == 1, "MPI had it");
  shutdown();
  expect_ok(gpu.stream().wait_until_idle(soon()), "the stream goes on");
  std::printf("%s\n", gives_up ? "given up" : "survivor done");
  std::fflush(stdout);
}

// Left also after a failed check, before the double's threads go.
struct World {
  explicit World(const std::map<std::string, std::string>& options) { init(options); }
  ~World() { shutdown(); }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
};

void tests(const std::string& mode) {
  const World world({{"transport", "mpi"},
                     {"gpu_backend", "mpi"},
                     {"mpi_gpu_memory", mode == "refuses" ? "auto" : "on"},
                     {"fusion_threshold", mode == "grows" ? "8M" : "1M"},
                     {"cuda_library", RUEDA_CUDA_DOUBLE},
                     {"nccl_library", RUEDA_NCCL_DOUBLE}});
  if (mode == "refuses") return is_refused();
  if (mode == "loses") loses_a_rank();
  if (mode == "leaves") return leaves_threads_behind();
  const Tensors gpu;
  if (mode == "grows") return grows(gpu);
  types_and_operations(gpu);
  many_parts(gpu);
  groups_and_factors(gpu);
  halves(gpu);
  what_is_staged(gpu);
  two_sets_of_all(gpu);
  expect_ok(gpu.stream().wait_until_idle(soon()), "the stream");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  return rank_main([&] {
    cuda_double().reset({.visible_memory = true, .delay_seed = 7});
    tests(mode);
    for (const std::string& misuse : cuda_double().take_misuse()) throw std::runtime_error(misuse);
  });
}
