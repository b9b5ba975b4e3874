// rueda/torch.h on tensors of a GPU, between real processes at any number of ranks. With
// RUEDA_TEST_DEVICE=cpu the same on the CPU, but for what is about streams.
#include <c10/core/StreamGuard.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "expectations.h"

using namespace rueda;
using namespace rueda::test;

namespace {

namespace rt = rueda::libtorch;

constexpr ReduceOp sum = ReduceOp::sum;

torch::Device device() {
  const char* name = std::getenv("RUEDA_TEST_DEVICE");
  return torch::Device(name != nullptr ? name : "cuda:0");
}

bool on_gpu() {
  return device().is_cuda();
}

torch::Tensor full(torch::IntArrayRef shape, double value) {
  return torch::full(shape, value, torch::TensorOptions(device()).dtype(torch::kDouble));
}

// The sum over ranks of rank + 1.
double total() {
  return size() * (size() + 1) / 2.0;
}

void expect_full(const torch::Tensor& found, torch::IntArrayRef shape, double value,
                 const std::string& what) {
  expect(found.device() == device(), what + " is on the device");
  expect_equal(found.cpu(), full(shape, value).cpu(), what);
}

void test_collectives() {
  const torch::Tensor input = full({3, 5}, rank() + 1);
  expect_full(rt::allreduce(input, {.op = sum}), {3, 5}, total(), "allreduce");
  expect_full(input, {3, 5}, rank() + 1, "its input");
  torch::Tensor wide = full({4, 6}, rank() + 1);
  rt::allreduce_(wide.t().slice(0, 0, 6, 2), {.op = sum});
  expect_full(wide.slice(1, 0, 6, 2), {4, 3}, total(), "allreduce_ of every second column");
  expect_full(wide.slice(1, 1, 6, 2), {4, 3}, rank() + 1, "the other columns");
  const auto group = rt::grouped_allreduce({full({7}, 1), full({2, 2}, rank() + 1)}, {.op = sum});
  expect_full(group[0], {7}, size(), "the first of a group");
  expect_full(group[1], {2, 2}, total(), "the second of a group");
  const torch::Tensor gathered = rt::allgather(full({rank() + 1, 2}, rank()));
  for (int other = 0, row = 0; other < size(); row += ++other) {
    expect_full(gathered.narrow(0, row, other + 1), {other + 1, 2}, other, "allgather");
  }
  expect_full(rt::broadcast(full({5}, rank()), size() - 1), {5}, size() - 1, "broadcast");
  const auto part = rt::reduce_scatter(full({size(), 3}, rank() + 1), {.op = sum});
  expect_full(part, {1, 3}, total(), "reduce_scatter");
  const auto exchanged = rt::alltoall(full({2 * size()}, rank()));
  for (int other = 0; other < size(); ++other) {
    expect_full(exchanged.tensor.narrow(0, 2 * other, 2), {2}, other, "alltoall");
  }
  expect_full(rt::allreduce(torch::empty({0, 4}, full({}, 0).options())), {0, 4}, 0, "empty");
}

void test_autograd() {
  torch::Tensor input = full({3}, rank() + 1).requires_grad_();
  (rt::autograd::allreduce(input, {.op = sum}) * (rank() + 1)).sum().backward();
  expect_full(input.grad(), {3}, total(), "the gradient of an allreduce");
  torch::Tensor rows = full({rank() + 1, 2}, 1).requires_grad_();
  (rt::autograd::allgather(rows) * (rank() + 1)).sum().backward();
  expect_close(rows.grad().cpu(), full({rank() + 1, 2}, total() / size()).cpu(),
               "the gradient of an allgather");
}

void test_refusals() {
  const bool odd_one = rank() == size() - 1;
  const torch::Tensor usable = full({3}, 1);
  expect_throws<UnsupportedError>(
      [&] { rt::allreduce(odd_one ? usable.to(torch::kMeta) : usable, {.name = "elsewhere"}); },
      "device 'meta'");
  if (on_gpu() && size() > 1) {
    expect_throws<MismatchError>(
        [&] { rt::allreduce(odd_one ? usable.cpu() : usable, {.name = "two places"}); },
        "two places");
  }
  expect_full(rt::allreduce(usable, {.op = sum}), {3}, size(), "afterwards");
}

torch::nn::Sequential model(int seed) {
  torch::manual_seed(seed);
  torch::nn::Sequential layers(torch::nn::Linear(6, 33), torch::nn::Tanh(),
                               torch::nn::Linear(33, 3));
  layers->to(device(), torch::kDouble);
  return layers;
}

torch::Tensor loss_of(torch::nn::Sequential& layers, const torch::Tensor& x) {
  return layers->forward(x).square().mean();
}

void test_optimizer() {
  torch::nn::Sequential together = model(1 + rank());
  torch::nn::Sequential alone = model(1);
  rt::broadcast_parameters(*together);
  torch::optim::Adam adam(together->parameters(), 0.01);
  torch::optim::Adam single(alone->parameters(), 0.01);
  rt::DistributedOptimizer optimizer(adam, together->named_parameters());
  torch::manual_seed(9);
  for (int step = 0; step < 4; ++step) {
    const torch::Tensor x = torch::randn({12 * size(), 6}, torch::kDouble).to(device());
    optimizer.zero_grad();
    loss_of(together, x.narrow(0, 12 * rank(), 12)).backward();
    optimizer.step();
    single.zero_grad();
    loss_of(alone, x).backward();
    single.step();
  }
  const auto expected = alone->parameters();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expect_close(together->parameters()[i], expected[i], "a parameter after four steps");
  }
  torch::optim::Adam fresh(together->parameters(), 0.5);
  rt::broadcast_optimizer_state(rank() == 0 ? adam : fresh);
  const torch::Tensor x = torch::ones({4, 6}, torch::kDouble).to(device());
  together->zero_grad();
  loss_of(together, x).backward();
  (rank() == 0 ? adam : fresh).step();
  for (const torch::Tensor& parameter : together->parameters()) {
    expect_equal(rt::broadcast(parameter, 0), parameter.detach(), "the state of rank 0 everywhere");
  }
}

// --- Streams ------------------------------------------------------------------------------------

c10::Stream side_stream() {
  return rt::detail::AnyDevice(device().type()).getStreamFromGlobalPool(device());
}

// Takes the GPU some milliseconds, and changes nothing of `tensor`.
void delay(const torch::Tensor& tensor) {
  if (!on_gpu()) return;
  torch::Tensor product = torch::eye(1500, tensor.options().requires_grad(false));
  const torch::Tensor other = product * 1.0;
  for (int i = 0; i < 20; ++i) product = product.mm(other);
  tensor.add_(product[0][1]);  // a zero that is known only at the end
}

void test_streams() {
  constexpr std::int64_t count = 1 << 20;
  std::vector<c10::Stream> streams{side_stream(), side_stream()};
  torch::Tensor tensor = full({count}, 0);
  (void)rt::allreduce_(tensor, {.name = "warm"}).cpu();  // other streams may write it now
  for (int round = 0; round < 5; ++round) {
    rt::TensorHandle handle = [&] {
      const c10::StreamGuard producer(streams[0]);
      tensor.fill_(0);
      delay(tensor);
      tensor.add_(rank() + 1);
      return rt::allreduce_async_(tensor, {.name = "two streams", .op = sum});
    }();
    torch::Tensor copy;
    {
      const c10::StreamGuard consumer(streams[1]);
      copy = handle.wait() * 1.0;
      expect_full(copy, {count}, total(), "what another stream reads");
    }
    const c10::StreamGuard producer(streams[0]);
    expect_full(handle.wait() * 1.0, {count}, total(), "what the submitting stream reads");
  }
}

void test_dropped_handles() {
  constexpr std::int64_t count = 1 << 18;
  for (int round = 0; round < 30; ++round) {
    {
      torch::Tensor dropped = full({count}, rank() + 1);
      if (round % 5 == 0) delay(dropped);
      const std::string name = "dropped " + std::to_string(round);  // none serves twice at once
      (void)rt::allreduce_async_(dropped, {.name = name, .op = sum});
    }
    std::vector<torch::Tensor> fresh;
    for (int i = 0; i < 3; ++i) fresh.push_back(full({count}, -5));
    barrier().wait();
    for (const torch::Tensor& each : fresh) expect_full(each, {count}, -5, "other memory");
  }
}

}  // namespace

int main() {
  try {
    init();
    test_collectives();
    test_autograd();
    test_refusals();
    test_optimizer();
    if (on_gpu()) test_streams();
    test_dropped_handles();
    barrier().wait();
    std::printf("rank %d passed\n", rank());
    shutdown();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
