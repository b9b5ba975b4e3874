// Collectives on torch::Tensor between real processes, at any number of ranks.
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "expectations.h"

using namespace rueda;  // `torch::Tensor` is still torch's
using namespace rueda::test;

void test_autograd();
void test_optimizer();

namespace {

namespace rt = rueda::libtorch;

constexpr ReduceOp sum = ReduceOp::sum;

// The values of rank `of`: small whole numbers, so that sums are exact in every dtype.
torch::Tensor values(int of, torch::IntArrayRef shape, torch::ScalarType dtype = torch::kFloat) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return (torch::arange(count) % 5 + of).reshape(shape).to(dtype);
}

torch::Tensor total(torch::IntArrayRef shape, torch::ScalarType dtype = torch::kFloat) {
  torch::Tensor result = values(0, shape, dtype);
  for (int other = 1; other < size(); ++other) result = result + values(other, shape, dtype);
  return result;
}

void test_dtypes() {
  for (const auto dtype :
       {torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kChar, torch::kShort,
        torch::kInt, torch::kLong, torch::kByte, torch::kComplexFloat, torch::kComplexDouble}) {
    const auto found = rt::allreduce(values(rank(), {7}, dtype), {.op = sum});
    expect_equal(found, total({7}, dtype), c10::toString(dtype));
  }
  for (const auto dtype :
       {torch::kUInt16, torch::kUInt32, torch::kUInt64}) {  // torch has no arithmetic on these
    const auto found = rt::allreduce(values(rank(), {7}).to(dtype), {.op = sum});
    expect(found.scalar_type() == dtype, "an unsigned dtype stays");
    expect_equal(found.to(torch::kLong), total({7}, torch::kLong), c10::toString(dtype));
  }
  const auto any = rt::allreduce(torch::tensor({rank() == size() - 1, false}), {.op = sum});
  expect_equal(any, torch::tensor({true, false}), "'or' of booleans");
}

void test_allreduce() {
  const auto average = total({3, 5}) / size();
  const auto input = values(rank(), {3, 5}).requires_grad_();
  const auto result = rt::allreduce(input);
  expect_close(result, average, "the default is the average");
  expect(!result.requires_grad(), "the result requires no gradient");
  expect_equal(input.detach(), values(rank(), {3, 5}), "the input stays");
  expect_equal(rt::allreduce(torch::tensor(2.0), {.op = sum, .postscale_factor = 0.5}),
               torch::tensor(1.0 * size()), "a scalar, scaled");
  expect_equal(rt::allreduce(torch::empty({0, 4})), torch::empty({0, 4}), "an empty tensor");

  auto tensor = values(rank(), {3, 5});
  const auto version = tensor._version();
  expect(rt::allreduce_(tensor, {.op = sum}).is_same(tensor), "in place");
  expect_equal(tensor, total({3, 5}), "in place");
  expect(tensor._version() > version, "autograd knows that the tensor has changed");

  // Other strides, in place and out of place.
  auto transposed = values(rank(), {3, 5}).t();
  expect_equal(rt::allreduce(transposed, {.op = sum}), total({3, 5}).t(), "transposed");
  auto whole = values(rank(), {4, 6});
  rt::allreduce_(whole.slice(1, 1, 6, 2), {.op = sum});
  auto expected = values(rank(), {4, 6});
  expected.slice(1, 1, 6, 2).copy_(total({4, 6}).slice(1, 1, 6, 2));
  expect_equal(whole, expected, "only the columns of the slice are written");
  const auto complex = torch::complex(values(rank(), {3}), values(rank(), {3}));
  expect_equal(rt::allreduce(complex.conj(), {.op = sum}), torch::complex(total({3}), -total({3})),
               "a lazy conjugate");
}

void test_asynchronous() {
  std::vector<rt::TensorHandle> handles;
  for (int i = 0; i < 20; ++i) {
    handles.push_back(rt::allreduce_async(values(rank() + i, {100 + i}),
                                          {.name = "many." + std::to_string(i), .op = sum}));
  }
  for (int i = 20; i-- > 0;) {
    expect_equal(handles[i].wait(), total({100 + i}) + i * size(), "in any order");
    expect(handles[i].done(), "done after wait()");
    expect(handles[i].wait_for(std::chrono::seconds(0)), "waiting again");
  }
  // Dropped handles: the tensors live until the operation has ended.
  for (int i = 0; i < 50; ++i) {
    (void)rt::allreduce_async(torch::full({100'000}, 1.0F), {.op = sum});
  }
  barrier().wait();
  auto last = torch::full({100'000}, 1.0F);
  rt::allreduce_async_(last, {.op = sum}).wait();
  expect_equal(last, torch::full({100'000}, 1.0 * size()), "after dropped handles");
}

// A tensor is freed by dropping the handle of an unfinished operation while tensors of other
// dropped handles are released.
void test_deleters_that_drop_handles() {
  const bool late = rank() == size() - 1;  // the others' operations wait for this rank's
  const auto begin = [](const std::string& name, const torch::Tensor& tensor) {
    return rt::allreduce_async_(tensor, {.name = name, .op = sum});
  };
  bool freed = late;
  if (!late) {
    float memory[4] = {};
    auto second = std::make_shared<std::optional<rt::TensorHandle>>(begin("2", torch::ones(4)));
    (void)begin("1", torch::from_blob(
                         memory, {4},
                         [&freed, second](void*) {
                           second->reset();
                           freed = true;
                         },
                         torch::kFloat));
    second.reset();
    barrier().wait();
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!freed) {
      expect(std::chrono::steady_clock::now() < limit, "it is freed once the operation is done");
      rt::detail::Abandoned::all().release_completed();
      std::this_thread::yield();
    }
  } else {
    barrier().wait();
    begin("1", torch::ones(4)).wait();
  }
  barrier().wait();
  if (late) begin("2", torch::ones(4)).wait();
}

void test_grouped() {
  std::vector<torch::Tensor> tensors{values(rank(), {5}), values(rank(), {2, 3}, torch::kLong),
                                     torch::empty({0}), values(rank(), {4, 3}).t()};
  const auto results = rt::grouped_allreduce(tensors, {.name = "group", .op = sum});
  expect(results.size() == 4, "a result for each");
  expect_equal(results[1], total({2, 3}, torch::kLong), "a member of a group");
  rt::grouped_allreduce_(tensors, {.op = sum});
  expect_equal(tensors[0], total({5}), "a group in place");
  expect_equal(tensors[3], total({4, 3}).t(), "a transposed member in place");
  expect(rt::grouped_allreduce({}).empty(), "an empty group");
}

void test_exchanges() {
  const int ranks = size();
  const int last = ranks - 1;
  std::vector<torch::Tensor> parts;  // rank r has r rows
  for (int other = 0; other < ranks; ++other) parts.push_back(values(other, {other, 3}));
  expect_equal(rt::allgather(parts[rank()]), torch::cat(parts), "allgather of uneven parts");

  const auto source = values(rank(), {2, 2});
  expect_equal(rt::broadcast(source, last), values(last, {2, 2}), "broadcast");
  expect_equal(source, values(rank(), {2, 2}), "broadcast leaves its input");
  auto target = values(rank(), {3, 2}).t();
  rt::broadcast_(target, last);
  expect_equal(target, values(last, {3, 2}).t(), "broadcast in place, not contiguous");

  const std::int64_t rows = ranks + 1;  // the first rank gets one more if there are several
  const std::int64_t mine = rows / ranks + (rank() < rows % ranks ? 1 : 0);
  const std::int64_t before =
      rank() * (rows / ranks) + std::min<std::int64_t>(rank(), rows % ranks);
  expect_equal(rt::reduce_scatter(values(rank(), {rows, 2}), {.op = sum}),
               total({rows, 2}).slice(0, before, before + mine), "reduce_scatter");
  std::vector<std::int64_t> splits(ranks, 0);
  splits[last] = 5;
  expect_equal(rt::reduce_scatter(values(rank(), {5}), {.op = sum, .splits = splits}),
               rank() == last ? total({5}) : torch::empty({0}), "reduce_scatter with splits");

  // Rank r sends r + s rows, each with the number r, to rank s.
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;
  std::vector<torch::Tensor> expected;
  for (int other = 0; other < ranks; ++other) {
    sent.push_back(rank() + other);
    received.push_back(other + rank());
    expected.push_back(torch::full({other + rank(), 2}, other));
  }
  std::int64_t all = 0;
  for (const std::int64_t split : sent) all += split;
  const auto result = rt::alltoall(torch::full({all, 2}, rank()), sent);
  expect_equal(result.tensor, torch::cat(expected), "alltoall");
  expect(result.received_splits == received, "the received splits");
}

void test_shared_memory() {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kLong}) {
    auto shared = rt::empty({5, 1000}, dtype);
    expect_equal(shared, torch::zeros({5, 1000}, dtype), "begins as zeros");
    for (int round = 0; round < 3; ++round) {
      shared.copy_(values(rank(), {5, 1000}, dtype));
      expect_equal(rt::allreduce_(shared, {.op = sum}), total({5, 1000}, dtype), "in place");
    }
    expect(rt::empty({0, 3}, dtype).sizes() == torch::IntArrayRef({0, 3}), "nothing");
  }
  auto weight = torch::ones({3, 2}, torch::requires_grad());
  weight.mutable_grad() = rt::empty({3, 2});
  const void* const memory = weight.grad().data_ptr();
  torch::optim::SGD sgd({weight}, 1.0);
  rt::DistributedOptimizer optimizer(sgd, {.op = sum});
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad(false);
    (weight * (rank() + 1)).sum().backward();
    optimizer.synchronize();
    expect(weight.grad().data_ptr() == memory, "the gradient stays where it is");
    expect_equal(weight.grad(), torch::ones({3, 2}) * (size() * (size() + 1) / 2), "its sum");
  }
  expect_throws<UnsupportedError>([] { static_cast<void>(rt::empty({3}, torch::kFloat8_e5m2)); },
                                  "Float8_e5m2");
}

void test_process_sets() {
  if (size() < 2) return;
  const int last = size() - 1;
  const ProcessSet set = add_process_set({0, last});
  if (rank_in(set) >= 0) {
    expect_equal(rt::allreduce(values(rank(), {3}), {.op = sum, .process_set = set}),
                 values(0, {3}) + values(last, {3}), "over a process set");
    expect_equal(rt::broadcast(values(rank(), {3}), last, {.process_set = set}), values(last, {3}),
                 "the root is a rank of the world");
  }
  remove_process_set(set);
}

void test_refusals() {
  const bool odd_one = rank() == size() - 1;  // one rank is at fault, all are told
  const auto at_fault = "rank " + std::to_string(size() - 1);
  const auto good = torch::ones({12, 2});
  const auto pick = [&](const torch::Tensor& bad) { return odd_one ? bad : good; };
  const auto sparse = pick(good.to_sparse());
  expect_throws<UnsupportedError>([&] { rt::allreduce(sparse, {.name = "s"}); }, "sparse");
  expect_throws<UnsupportedError>([&] { rt::allreduce(sparse, {.name = "s"}); }, at_fault);
  expect_throws<UnsupportedError>([&] { rt::allreduce_(sparse); }, "sparse");
  expect_throws<UnsupportedError>([&] { rt::allgather(sparse); }, "sparse");
  expect_throws<UnsupportedError>([&] { rt::broadcast(sparse, 0); }, "sparse");
  expect_throws<UnsupportedError>([&] { rt::broadcast_(sparse, 0); }, "sparse");
  expect_throws<UnsupportedError>([&] { rt::reduce_scatter(sparse); }, "sparse");
  expect_throws<UnsupportedError>([&] { rt::alltoall(sparse, {}, {.name = "a"}); }, "sparse");
  expect_throws<UnsupportedError>([&] { rt::grouped_allreduce({good, sparse}, {.name = "g"}); },
                                  "tensor 1 of the group: the tensor is sparse");
  expect_throws<UnsupportedError>([&] { rt::grouped_allreduce({sparse, good}); }, "sparse");
  expect_throws<UnsupportedError>([&] { rt::allreduce(pick(torch::ones({2}, torch::kMeta))); },
                                  "device 'meta'");
  expect_throws<UnsupportedError>([&] { rt::allreduce(pick(good.to(torch::kFloat8_e5m2))); },
                                  "dtype Float8_e5m2");
  expect_throws<InvalidArgumentError>([&] { rt::allreduce(pick({})); }, "undefined");
  const auto nested = pick(torch::nested::as_nested_tensor({torch::ones({2}), torch::ones({3})}));
  expect_throws<UnsupportedError>([&] { rt::allreduce(nested); }, "nested");
  expect_throws<UnsupportedError>([&] { rt::allgather(nested); }, "nested");
  const auto expanded = pick(torch::ones({1, 2}).expand({12, 2}));
  const auto copies = "shape [12, 2] share memory (strides [0, 1])";
  expect_throws<InvalidArgumentError>([&] { rt::allreduce_(expanded); }, copies);
  expect_throws<InvalidArgumentError>([&] { rt::broadcast_(expanded, 0); }, copies);
  expect_throws<InvalidArgumentError>([&] { rt::grouped_allreduce_({good, expanded}); }, copies);
  expect_equal(rt::allreduce(expanded, {.op = sum}), good * size(), "expanded, not in place");
  if (size() > 1) {
    expect_throws<MismatchError>(
        [&] { rt::allreduce(torch::ones({odd_one ? 3 : 2}), {.name = "other"}); }, "other");
  }
  expect_equal(rt::allreduce(good, {.op = sum}), good * size(), "the world goes on");
}

void test_groups_that_differ() {
  if (size() < 2) return;
  const bool odd_one = rank() == size() - 1;
  expect_throws<MismatchError>(
      [&] { add_process_set(odd_one ? std::vector<int>{0} : std::vector<int>{0, 1}); }, "[0, 1]");
  const std::vector<int> all = ranks_of({});
  const ProcessSet set = add_process_set(all);
  expect_equal(rt::allreduce(torch::ones(2), {.op = sum, .process_set = set}),
               torch::ones({2}) * size(), "the same ranks everywhere");
  remove_process_set(set);
  expect_throws<InvalidArgumentError>([&] { rt::allreduce(torch::ones(2), {.process_set = set}); },
                                      "process set");
}

// Operations that began before complete or report an error; later ones throw at once.
void test_use_after_shutdown() {
  auto weight = torch::ones({2}, torch::requires_grad());
  torch::optim::SGD sgd({weight}, 1.0);
  rt::DistributedOptimizer optimizer(sgd);
  const auto whole = rt::allreduce_async(torch::ones(3), {.op = sum});
  const auto lonely = rt::allreduce_async(
      torch::ones(3), {.name = "on each rank another" + std::to_string(rank())});
  const int expected_size = size();
  whole.wait();
  if (expected_size == 1) lonely.wait();
  shutdown();
  expect_equal(whole.wait(), torch::ones({3}) * expected_size, "a result outlives the world");
  if (expected_size > 1) expect_throws<ShutdownError>([&] { lonely.wait(); }, "shut down");
  expect_throws<NotInitializedError>([] { rt::allreduce(torch::ones(1)); }, "init()");
  expect_throws<NotInitializedError>(
      [] { static_cast<void>(rt::allreduce_async_(torch::ones(1))); }, "init()");
  expect_throws<NotInitializedError>([&] { weight.sum().backward(); }, "init()");
  expect_throws<NotInitializedError>([&] { optimizer.step(); }, "init()");
}

}  // namespace

int main() {
  try {
    expect_throws<NotInitializedError>([] { rt::allreduce(torch::ones(1)); }, "init()");
    init();
    torch::set_num_threads(1);
    test_dtypes();
    test_allreduce();
    test_asynchronous();
    test_deleters_that_drop_handles();
    test_grouped();
    test_exchanges();
    test_shared_memory();
    test_process_sets();
    test_refusals();
    test_groups_that_differ();
    test_autograd();
    test_optimizer();
    test_use_after_shutdown();
    std::printf("passed\n");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FAILED: %s\n", error.what());
    abort(error.what());
    return 1;
  }
}
