// Gradients through collectives against formulas: rank r's loss is a weighted sum of its result.
#include <functional>
#include <string>
#include <vector>

#include "expectations.h"

using namespace rueda;
using namespace rueda::test;

void test_autograd();

namespace {

namespace ad = rueda::libtorch::autograd;

// The values of rank `of`, with a first extent that may depend on the rank.
torch::Tensor values(int of, std::int64_t rows = 4) {
  return torch::arange(rows * 2).reshape({rows, 2}).to(torch::kDouble) + of;
}

// The loss weights of rank `of`, which differ between elements.
torch::Tensor weights(int of, const torch::Tensor& like) {
  return (torch::arange(like.numel()).reshape(like.sizes()) % 7).to(torch::kDouble) + 10 * of;
}

torch::Tensor mean_weights(const torch::Tensor& like) {
  torch::Tensor all = torch::zeros_like(like);
  for (int other = 0; other < size(); ++other) all = all + weights(other, like);
  return all / size();
}

void backward(const torch::Tensor& result) {
  (result * weights(rank(), result)).sum().backward();
}

void test_reductions() {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
    auto input = values(rank()).requires_grad_();
    const auto result =
        ad::allreduce(input * 1, {.op = op, .prescale_factor = 0.5, .postscale_factor = 3.0});
    expect(result.requires_grad(), "the result requires a gradient");
    backward(result);
    const double factor = 1.5 * (op == ReduceOp::sum ? size() : 1);
    expect_close(input.grad(), mean_weights(input.detach()) * factor, "through allreduce");
  }
  auto first = values(rank()).requires_grad_();
  auto second = values(rank(), 1).requires_grad_();
  const auto group = ad::grouped_allreduce({first, second, torch::ones({2})}, {.name = "several"});
  (group[0] * weights(rank(), first)).sum().backward();  // the others' gradients are zero
  expect_close(first.grad(), mean_weights(first.detach()), "through a group");
  expect_equal(second.grad(), torch::zeros({1, 2}, torch::kDouble), "what no loss depends on");
  expect(!ad::allreduce(torch::ones(2)).requires_grad(), "none is required");
}

void test_gather() {
  const int mine = rank();
  auto input = values(mine, mine + 1).requires_grad_();  // rank r contributes r + 1 rows
  const auto gathered = ad::allgather(input, {.name = "rows"});
  backward(gathered);
  const auto expected = mean_weights(gathered.detach()).narrow(0, mine * (mine + 1) / 2, mine + 1);
  expect_close(input.grad(), expected, "through allgather");
}

void test_broadcast() {
  const int root = size() - 1;
  auto input = values(rank()).requires_grad_();
  const auto result = ad::broadcast(input, root);
  expect_equal(result.detach(), values(root), "the root's");
  backward(result);
  const auto average = mean_weights(result.detach());
  expect_close(input.grad(), rank() == root ? average : torch::zeros_like(average),
               "through broadcast");
}

void test_reduce_scatter() {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
    auto input = values(rank(), 2 * size() + 1).requires_grad_();  // rank 0 gets one row more
    const auto result = ad::reduce_scatter(input, {.op = op, .prescale_factor = 2.0});
    backward(result);
    std::vector<torch::Tensor> parts;
    for (int other = 0; other < size(); ++other) {
      parts.push_back(weights(other, torch::empty({other == 0 ? 3 : 2, 2}, torch::kDouble)));
    }
    const double factor = 2.0 * (op == ReduceOp::sum ? size() : 1);
    expect_close(input.grad(), torch::cat(parts) * factor, "through reduce_scatter");
  }
}

void test_alltoall() {
  // Rank r sends r + 1 rows to each rank.
  const int mine = rank();
  const std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), mine + 1);
  auto input = values(mine, size() * (mine + 1)).requires_grad_();
  const auto result = ad::alltoall(input, splits);
  for (int other = 0; other < size(); ++other) {
    expect(result.received_splits[static_cast<std::size_t>(other)] == other + 1, "the splits");
  }
  backward(result.tensor);
  std::vector<torch::Tensor> back;  // from each rank's weights, the rows that this rank sent
  const auto received = torch::empty({size() * (size() + 1) / 2, 2}, torch::kDouble);
  for (int other = 0; other < size(); ++other) {
    back.push_back(weights(other, received).narrow(0, mine * (mine + 1) / 2, mine + 1));
  }
  expect_close(input.grad(), torch::cat(back), "through alltoall");
}

using Map = std::function<torch::Tensor(const torch::Tensor&)>;

// A collective on one rank's tensor, and in one process on those of all ranks, stacked: itself, its
// backward pass, and the backward pass of that.
struct TwiceDifferentiable {
  std::string name;
  Map collective, forward, backward, again;
};

std::vector<TwiceDifferentiable> twice_differentiable() {
  using torch::Tensor;
  const std::int64_t n = size();
  const Map reduced = [n](const Tensor& a) { return a.mean(0).expand({n, -1}); };
  const Map summed = [n](const Tensor& a) { return a.sum(0).expand({n, -1}); };
  const Map gathered = [n](const Tensor& a) { return a.flatten().expand({n, -1}); };
  const Map scattered = [n](const Tensor& a) { return a.mean(0).view({n, -1}); };
  const Map from_root = [n](const Tensor& a) { return a[0].expand({n, -1}); };
  const Map to_root = [n](const Tensor& a) {
    return torch::cat({a.mean(0, true), a.new_zeros({n - 1, a.size(1)})});
  };
  const Map exchanged = [](const Tensor& a) { return a.t(); };
  const auto average_of = [n](const Map& map) {
    return [n, map](const Tensor& a) { return map(a) / n; };
  };
  return {
      {"average", [](const Tensor& a) { return ad::allreduce(a, {.name = "average"}); }, reduced,
       reduced, reduced},
      {"sum",
       [](const Tensor& a) { return ad::allreduce(a, {.name = "sum", .op = ReduceOp::sum}); },
       summed, summed, summed},
      {"unnamed", [](const Tensor& a) { return ad::allreduce(a); }, reduced, reduced, reduced},
      {"group",
       [](const Tensor& a) { return ad::grouped_allreduce({a * 2, a}, {.name = "group"})[1]; },
       reduced, reduced, reduced},
      {"gather", [](const Tensor& a) { return ad::allgather(a, {.name = "gather"}); }, gathered,
       scattered, average_of(gathered)},
      {"root", [](const Tensor& a) { return ad::broadcast(a, 0, {.name = "root"}); }, from_root,
       to_root, average_of(from_root)},
      {"scatter", [](const Tensor& a) { return ad::reduce_scatter(a, {.name = "scatter"}); },
       scattered, gathered, scattered},
      {"exchange", [](const Tensor& a) { return ad::alltoall(a, {}, {.name = "exchange"}).tensor; },
       exchanged, exchanged, exchanged},
  };
}

// Rank r's loss weighs the cubes of what the collective makes of the squares of its input x. The
// gradient of x, weighed again, is differentiated together with x itself.
void test_second_derivatives() {
  const int mine = rank();
  std::vector<torch::Tensor> inputs, others;
  for (int other = 0; other < size(); ++other) {
    inputs.push_back(values(other, size()).select(1, 0) + 1);
    others.push_back(weights(other, inputs.back()) + 1);
  }
  const auto x = torch::stack(inputs), v = torch::stack(others);
  for (const auto& [name, collective, forward, backward, again] : twice_differentiable()) {
    const auto y = forward(x * x);
    std::vector<torch::Tensor> of_results;
    for (int other = 0; other < size(); ++other) of_results.push_back(weights(other, y[other]) + 1);
    const auto w = torch::stack(of_results);
    const auto expected =
        2 * v * backward(3 * y.square() * w) + 2 * x * backward(6 * y * w * again(2 * x * v)) + 1;

    const auto input = x[mine].clone().requires_grad_();
    const auto loss = (collective(input * input).pow(3) * w[mine]).sum();
    const auto gradient = torch::autograd::grad({loss}, {input}, {}, true, true)[0];
    ((gradient * v[mine]).sum() + input.sum()).backward();
    expect_close(input.grad(), expected[mine], "the second derivative: " + name);
  }
}

void test_gradients_in_a_process_set() {
  if (size() < 3) return;
  const ProcessSet set = add_process_set({0, size() - 1});
  if (rank_in(set) >= 0) {
    auto input = values(rank()).requires_grad_();
    backward(ad::allreduce(input, {.op = ReduceOp::sum, .process_set = set}));
    const auto expected = weights(0, input) + weights(size() - 1, input);
    expect_close(input.grad(), expected, "over a process set");
  }
  remove_process_set(set);
}

void test_no_gradient() {
  auto input = values(rank()).requires_grad_();
  for (const ReduceOp op : {ReduceOp::max, ReduceOp::product}) {
    const auto result = ad::allreduce(input, {.op = op});
    expect_throws<UnsupportedError>([&] { result.sum().backward(); }, "no gradient is defined");
  }
  const auto sparse = rank() == size() - 1 ? torch::eye(3).to_sparse() : torch::eye(3);
  expect_throws<UnsupportedError>([&] { ad::allgather(sparse); }, "sparse");
}

}  // namespace

void test_autograd() {
  test_reductions();
  test_gather();
  test_broadcast();
  test_reduce_scatter();
  test_alltoall();
  test_second_derivatives();
  test_gradients_in_a_process_set();
  test_no_gradient();
}
