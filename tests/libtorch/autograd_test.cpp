// Gradients through collectives against formulas: rank r's loss is a weighted sum of its result.
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
  test_gradients_in_a_process_set();
  test_no_gradient();
}
