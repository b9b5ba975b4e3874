// DistributedOptimizer and broadcasts of state: the ranks together reach what each computes alone
// on all of the data.
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

#include "expectations.h"

using namespace rueda;
using namespace rueda::test;

void test_optimizer();

namespace {

namespace rt = rueda::libtorch;
namespace nn = torch::nn;
using torch::optim::Optimizer;

constexpr std::int64_t rows = 12;  // divisible by 1, 2, 3 and 4 ranks

nn::Sequential make_model(std::uint64_t seed) {
  torch::manual_seed(seed);
  return nn::Sequential(nn::Linear(4, 8), nn::Tanh(), nn::BatchNorm1d(8), nn::Linear(8, 2));
}

// Without batch normalisation, whose statistics depend on how a batch is split.
nn::Sequential make_plain_model(std::uint64_t seed) {
  torch::manual_seed(seed);
  return nn::Sequential(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 2));
}

// The inputs of a step.
torch::Tensor inputs_of(int step) {
  torch::manual_seed(1000 + step);
  return torch::randn({rows, 4});
}

torch::Tensor share_of(const torch::Tensor& all) {
  return all.slice(0, rank(), rows, size());
}

torch::Tensor loss_of(nn::Sequential& model, const torch::Tensor& inputs) {
  const auto targets = inputs.slice(1, 0, 2).sin();
  return nn::functional::mse_loss(model->forward(inputs), targets);
}

void expect_same_parameters(const nn::Sequential& found, const nn::Sequential& expected,
                            const std::string& what) {
  for (const auto& item : expected->named_parameters()) {
    expect_close(found->named_parameters()[item.key()], item.value(), what + ": " + item.key());
  }
}

// Trains twice, on this rank's share with the others and alone on all data, and compares.
template <class Make>
void trains_like_one(const std::string& what, Make make,
                     const rt::DistributedOptimizerOptions& options = {}) {
  auto together = make_plain_model(7);
  auto alone = make_plain_model(7);
  auto wrapped = make(together->parameters());
  auto reference = make(alone->parameters());
  rt::DistributedOptimizer optimizer(*wrapped, together->named_parameters(), options);
  const int passes = options.backward_passes_per_step;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad(step % 2 == 0);
    reference->zero_grad();
    for (int pass = 0; pass < passes; ++pass) {
      const auto inputs = inputs_of(passes * step + pass);
      loss_of(together, share_of(inputs)).backward();
      loss_of(alone, inputs).backward();
    }
    if (step == 1) optimizer.synchronize();
    optimizer.step();
    reference->step();
  }
  expect_same_parameters(together, alone, what);
}

void test_training() {
  trains_like_one("SGD", [](auto parameters) {
    return std::make_unique<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  });
  const auto adam = [](auto parameters) {
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.01));
  };
  trains_like_one("Adam, two passes", adam, {.backward_passes_per_step = 2});
  trains_like_one("a divided sum", adam, {.gradient_predivide_factor = 2.0});

  auto together = make_plain_model(7);
  auto alone = make_plain_model(7);
  torch::optim::LBFGS wrapped(together->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(5));
  torch::optim::LBFGS reference(alone->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(5));
  rt::DistributedOptimizer optimizer(wrapped);
  const auto inputs = inputs_of(0);
  const auto closure_of = [](auto& some, auto& model, torch::Tensor data) {
    return [&some, &model, data] {
      some.zero_grad();
      auto loss = loss_of(model, data);
      loss.backward();
      return loss;
    };
  };
  const auto loss = optimizer.step(closure_of(optimizer, together, share_of(inputs)));
  expect_close(loss, reference.step(closure_of(reference, alone, inputs)), "the averaged loss");
  expect_same_parameters(together, alone, "LBFGS");
}

// With codecs chosen by parameter name, on which all ranks agree.
void test_compression() {
  using enum CodecKind;
  const auto train = [](nn::Sequential& model, rt::DistributedOptimizer& optimizer, int first,
                        int last) {
    for (int step = first; step < last; ++step) {
      optimizer.zero_grad();
      loss_of(model, share_of(inputs_of(step))).backward();
      optimizer.step();
    }
  };
  const auto make = [](nn::Sequential& model) {
    return torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.1));
  };
  auto plain = make_plain_model(7);
  auto plain_sgd = make(plain);
  rt::DistributedOptimizer plain_optimizer(plain_sgd, plain->named_parameters());
  train(plain, plain_optimizer, 0, 4);

  rt::CompressionPolicy policy({{"*.bias", {}}, {"2.*", {random_k, 0.5}}, {"*", {int8}}});
  policy.min_elements = 0;
  expect(policy.codec_for("0.bias", 8).codec == none, "no codec for a bias");
  expect(policy.codec_for("2.weight", 16).codec == random_k, "the first rule that fits");
  policy.min_elements = 17;
  expect(policy.codec_for("2.weight", 16).codec == none, "too few elements");
  policy.min_elements = 0;
  auto whole = make_plain_model(7);
  auto whole_sgd = make(whole);
  rt::DistributedOptimizer optimizer(whole_sgd, whole->named_parameters(), {.compression = policy});
  train(whole, optimizer, 0, 2);
  const rt::CompressionState state = optimizer.compression_state();
  expect(state.steps == 2 && state.residuals.size() == 1, "what is kept");
  expect(state.residuals.at("2.weight").abs().sum().item<float>() > 0, "what has been lost");

  // A second model, which continues from the state of the first.
  auto second = make_plain_model(7);
  auto second_sgd = make(second);
  rt::DistributedOptimizer resumed(second_sgd, second->named_parameters(), {.compression = policy});
  train(second, resumed, 0, 1);
  {
    const torch::NoGradGuard no_grad;
    for (const auto& item : whole->named_parameters()) {
      second->named_parameters()[item.key()].copy_(item.value());
    }
  }
  resumed.load_compression_state(state);
  train(whole, optimizer, 2, 4);
  train(second, resumed, 2, 4);
  for (const auto& item : whole->named_parameters()) {
    expect_equal(second->named_parameters()[item.key()], item.value(), "resumed: " + item.key());
    expect_equal(rt::broadcast(item.value().detach(), 0), item.value().detach(),
                 "the same on every rank: " + item.key());
    expect(torch::allclose(item.value(), plain->named_parameters()[item.key()], 0, 0.1),
           "near to what it is without: " + item.key());
  }
  rt::CompressionState other = state;
  other.residuals["2.weight"] = torch::zeros({3});
  expect_throws<InvalidArgumentError>([&] { resumed.load_compression_state(other); },
                                      "error for '2.weight'");

  // A gradient that is not finite is reported with its name and rank, and training continues.
  optimizer.zero_grad();
  const auto hook = whole->named_parameters()["0.weight"].register_hook(
      [](const torch::Tensor& gradient) { return rank() == size() - 1 ? gradient / 0 : gradient; });
  loss_of(whole, share_of(inputs_of(0))).backward();
  expect_throws<InvalidArgumentError>([&] { optimizer.load_compression_state(state); },
                                      "load_compression_state() was called after backward()");
  expect_throws<InvalidArgumentError>([&] { optimizer.step(); },
                                      rt::detail::text("on rank ", size() - 1));
  whole->named_parameters()["0.weight"].remove_hook(hook);
  train(whole, optimizer, 4, 6);

  auto simple = make_plain_model(7);
  auto simple_sgd = make(simple);
  rt::DistributedOptimizer by_codec(simple_sgd, {.compression = {top_k, 0.01}});
  train(simple, by_codec, 0, 2);
  expect(by_codec.compression_state().residuals.empty(), "all tensors are small");
}

// The error feedback state outlives an optimizer that is destroyed, as by an exception in the
// training loop, while the engine still writes it.
void test_destruction_in_flight() {
  using enum CodecKind;
  const bool late = rank() == 0;  // the others' gradients wait for this rank's
  auto weight = torch::ones({64}, torch::requires_grad());
  torch::optim::SGD sgd({weight}, 1.0);
  rt::CompressionPolicy policy(top_k, 0.25);
  policy.min_elements = 0;
  std::optional<rt::DistributedOptimizer> optimizer;
  optimizer.emplace(sgd, rt::DistributedOptimizerOptions{.compression = policy});
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> residual(
      optimizer->compression_state().residuals.at("group0.parameter0").getIntrusivePtr());
  const auto backward = [&] { (weight * torch::arange(64)).sum().backward(); };
  if (!late) {
    backward();
    optimizer.reset();
    expect(!residual.expired(), "the residual is kept while the gradient is in flight");
  }
  barrier().wait();
  if (late) {
    backward();
    optimizer->step();
    optimizer.reset();
  }
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!residual.expired()) {
    expect(std::chrono::steady_clock::now() < limit, "it is freed once the operation is done");
    rt::detail::Abandoned::all().release_completed();
    std::this_thread::yield();
  }
}

void test_gradients() {
  auto used = torch::ones({3}, torch::requires_grad());
  auto sometimes = torch::ones({2, 2}, torch::requires_grad());
  auto never = torch::ones({2}, torch::requires_grad());
  auto frozen = torch::ones({2});
  torch::optim::SGD sgd({used, sometimes, never, frozen}, 1.0);
  rt::DistributedOptimizer optimizer(sgd, {.op = ReduceOp::sum});
  const auto backward = [&] {
    auto loss = (used * (rank() + 1)).sum();
    if (rank() == size() - 1) loss = loss + (sometimes.t() * 3).sum();
    loss.backward();
  };
  backward();
  expect_throws<InvalidArgumentError>([&] { optimizer.zero_grad(); }, "'group0.parameter0'");
  expect_throws<InvalidArgumentError>(backward,
                                      "was computed more often than backward_passes_per_step=1");
  // Gradients that grad() returns do not count; those of backward() do, even for given inputs.
  const auto returned = torch::autograd::grad({(used * used * 4).sum()}, {used});
  expect_equal(returned[0], torch::full({3}, 8.0F), "a gradient of something else");
  expect_throws<InvalidArgumentError>(
      [&] { used.sum().backward({}, false, false, std::vector<torch::Tensor>{used}); },
      "was computed more often");
  optimizer.synchronize();
  expect_equal(used.grad(), torch::full({3}, size() * (size() + 1) / 2.0), "the sum");
  expect_equal(sometimes.grad(), torch::full({2, 2}, 3.0F), "only one rank had a gradient");
  expect_equal(never.grad(), torch::zeros({2}), "nobody had a gradient");
  expect(!frozen.grad().defined(), "no gradient is required");
  used.mutable_grad().fill_(0.25);  // as clipping does; step() does not reduce it again
  optimizer.step();
  expect_equal(used.detach(), torch::full({3}, 0.75F), "step() after synchronize()");

  // If a gradient tensor was replaced meanwhile, the new one receives the reduced gradient.
  optimizer.zero_grad();
  backward();
  const auto replaced = torch::full({3}, 0.5F);
  used.mutable_grad() = replaced;
  optimizer.synchronize();
  expect(used.grad().is_same(replaced), "the gradient's new tensor stays");
  expect_equal(replaced, torch::full({3}, size() * (size() + 1) / 2.0), "the sum, in a new tensor");
  optimizer.zero_grad();
  backward();
  used.mutable_grad() = torch::ones({4});
  expect_throws<InvalidArgumentError>(
      [&] { optimizer.step(); },
      "of 'group0.parameter0' was replaced by one of shape [4] while that of shape [3]");
  expect_equal(used.detach(), torch::full({3}, 0.75F), "no step was taken");

  auto later = torch::ones({2}, torch::requires_grad());
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({later}));
  optimizer.zero_grad();
  ((later * (rank() + 1)).sum() + (used * 0).sum()).backward();
  sgd.zero_grad();  // bypasses the wrapper; gradients come back reduced
  optimizer.step();
  expect_equal(later.grad(), torch::full({2}, size() * (size() + 1) / 2.0), "an added group");
}

// Registered twice, as tied layers are: both names are of the same parameters.
struct TiedImpl : nn::Module {
  TiedImpl() {
    register_module("encoder", layer);
    register_module("decoder", layer);
  }
  torch::Tensor forward(const torch::Tensor& input) { return layer(torch::tanh(layer(input))); }
  nn::Linear layer{4, 4};
};
TORCH_MODULE(Tied);

void test_parameters_that_come_twice() {
  for (const bool are_named : {false, true}) {
    torch::manual_seed(3);
    Tied model;
    torch::optim::SGD sgd(model->parameters(), 0.0);
    const auto names =
        are_named ? model->named_parameters() : rt::DistributedOptimizer::NamedParameters();
    rt::DistributedOptimizer optimizer(sgd, names, {.op = ReduceOp::sum});
    const auto loss_on = [&](int rank) {
      return model->forward(torch::full({2, 4}, 0.1 * (rank + 1))).pow(2).sum();
    };
    auto expected = torch::zeros({4, 4});
    for (int each = 0; each < size(); ++each) {
      expected += torch::autograd::grad({loss_on(each)}, {model->layer->weight})[0];
    }
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      loss_on(rank()).backward();
      optimizer.step();
      expect_close(model->layer->weight.grad(), expected, "the gradient of a tied layer");
    }
  }
}

// Autograd forgets its node of a parameter that gets another type, and the hooks with it.
void test_parameters_that_change() {
  nn::Linear model(4, 4);
  torch::optim::SGD sgd(model->parameters(), 0.0);
  rt::DistributedOptimizer optimizer(sgd, model->named_parameters());
  auto type = torch::kFloat;
  const auto backward = [&] {
    (model->forward(torch::ones({1, 4}, type)) * (rank() + 1)).sum().backward();
  };
  const auto expect_mean = [&](const std::string& what) {
    const auto mean = torch::full({4}, (size() + 1) / 2.0, type);
    expect_close(model->bias.grad(), mean, what);
    optimizer.zero_grad();
  };
  backward();
  optimizer.step();
  expect_mean("before");
  type = torch::kDouble;
  model->to(type);
  backward();
  optimizer.synchronize();
  sgd.zero_grad();  // bypasses the wrapper, as who skips a bad step may do
  backward();
  optimizer.step();
  expect_mean("after a change, and a synchronize()");

  optimizer.synchronize();  // of what is not there
  type = torch::kFloat;
  model->to(type);
  backward();
  expect_throws<InvalidArgumentError>([&] { optimizer.step(); },
                                      "'weight' was given other memory or unfrozen");
  optimizer.zero_grad();
  backward();
  expect_throws<InvalidArgumentError>(backward, "was computed more often");  // it is watched again
  optimizer.step();
  expect_mean("after zero_grad()");
}

void test_parameters_that_were_frozen() {
  auto weight = torch::ones({4});
  torch::optim::SGD sgd({weight}, 0.0);
  rt::DistributedOptimizer optimizer(sgd);
  weight.set_requires_grad(true);
  optimizer.zero_grad();
  optimizer.synchronize();
  (weight * (rank() + 1)).sum().backward();
  optimizer.step();
  expect_close(weight.grad(), torch::full({4}, (size() + 1) / 2.0), "of what was frozen");

  auto later = torch::ones({2}, torch::requires_grad());
  (later * 1).sum().backward();
  optimizer.synchronize();
  optimizer.add_param_group(torch::optim::OptimizerParamGroup({later}));
  expect_throws<InvalidArgumentError>([&] { optimizer.step(); },
                                      "'group1.parameter0' was added with a gradient");
  optimizer.zero_grad();
  (later * 1).sum().backward();
  optimizer.step();
  expect_close(later.grad(), torch::ones({2}), "of what was added");
}

void test_graphs_of_parameters_that_change() {
  auto weight = torch::ones({4}, torch::requires_grad());
  torch::optim::SGD sgd({weight}, 0.0);
  rt::DistributedOptimizer optimizer(sgd);
  const auto loss = (weight * (rank() + 1)).sum();
  weight.set_data(torch::ones({4}, torch::kDouble));
  optimizer.zero_grad();
  optimizer.synchronize();
  loss.backward();
  optimizer.step();
  expect_close(weight.grad().to(torch::kFloat), torch::full({4}, (size() + 1) / 2.0),
               "of a graph that was there before");
}

void test_bad_input() {
  auto weight = torch::ones({4, 2}, torch::requires_grad());
  torch::optim::SGD sgd({weight}, 1.0);
  torch::OrderedDict<std::string, torch::Tensor> names;
  names.insert("another", torch::ones({1}));
  expect_throws<InvalidArgumentError>([&] { rt::DistributedOptimizer(sgd, names); },
                                      "group0.parameter0 of shape [4, 2]");
  expect_throws<InvalidArgumentError>([&] { rt::DistributedOptimizer(sgd, {.op = ReduceOp::max}); },
                                      "op is max");
  expect_throws<InvalidArgumentError>(
      [&] { rt::DistributedOptimizer(sgd, {.backward_passes_per_step = 0}); }, "less than 1");
  expect_throws<InvalidArgumentError>(
      [&] { rt::DistributedOptimizer(sgd, {.gradient_predivide_factor = 0}); }, "positive");

  names.insert("table", weight);
  {
    rt::DistributedOptimizer optimizer(sgd, names);
    const bool odd_one = rank() == size() - 1;  // only this rank's gradient is sparse
    const auto indices = torch::tensor({0, 2}, torch::kLong);
    const auto backward = [&] {
      torch::embedding(weight, indices, -1, false, odd_one).sum().backward();
    };
    backward();
    expect_throws<UnsupportedError>([&] { optimizer.step(); }, "sparse");
    expect_equal(weight.detach(), torch::ones({4, 2}), "no step was taken");
    optimizer.zero_grad();
    (weight * 0.5).sum().backward();
    optimizer.step();
    expect_equal(weight.detach(), torch::full({4, 2}, 0.5F), "the next step");
  }
  // The hooks are gone: backward() no longer reduces, however often it is called.
  weight.mutable_grad() = torch::Tensor();
  for (int pass = 0; pass < 3; ++pass) (weight * (rank() + 1)).sum().backward();
  expect_equal(weight.grad(), torch::full({4, 2}, 3.0 * (rank() + 1)), "without an optimizer");
}

// backward() throws what a hook of the program throws. If only one rank's hook throws, this rank
// contributes zeros for missing gradients, so that the others' step() ends.
void test_hooks_that_throw() {
  auto first = torch::ones({3}, torch::requires_grad());
  auto second = torch::ones({3}, torch::requires_grad());
  torch::optim::SGD sgd({first, second}, 1.0);
  rt::DistributedOptimizer optimizer(sgd, {.op = ReduceOp::sum});
  bool broken = true;
  first.register_hook([&](const torch::Tensor& /*gradient*/) {
    if (broken) throw std::runtime_error("a broken hook");
  });
  const auto backward = [&] { ((first + second * 2) * (rank() + 1)).sum().backward(); };
  expect_throws<std::runtime_error>(backward, "a broken hook");
  optimizer.synchronize();
  expect_equal(first.grad(), torch::zeros({3}), "no rank had a gradient");
  optimizer.zero_grad();
  const bool odd_one = rank() == size() - 1;
  broken = odd_one;
  if (odd_one) {
    expect_throws<std::runtime_error>(backward, "a broken hook");
  } else {
    backward();
  }
  optimizer.synchronize();
  const int others = size() * (size() - 1) / 2;
  expect_equal(first.grad(), torch::ones({3}) * others, "the others' gradients");
  optimizer.zero_grad();
  broken = false;
  backward();
  optimizer.step();
  const int all = size() * (size() + 1) / 2;
  expect_equal(first.detach(), torch::ones({3}) * (1 - all), "the next step");
}

void test_process_set() {
  if (size() < 3) return;
  const ProcessSet set = add_process_set({0, size() - 1});
  if (rank_in(set) >= 0) {
    auto weight = torch::ones({2}, torch::requires_grad());
    torch::optim::SGD sgd({weight}, 1.0);
    rt::DistributedOptimizer optimizer(sgd, {.process_set = set});
    (weight * (rank() + 1)).sum().backward();
    optimizer.step();
    expect_equal(weight.grad(), torch::full({2}, (size() + 1) / 2.0), "the average of two");
  }
  remove_process_set(set);
}

void test_broadcasts() {
  const int root = size() - 1;
  auto model = make_model(static_cast<std::uint64_t>(rank()));
  model->named_buffers()["2.running_mean"].fill_(rank());
  rt::broadcast_parameters(*model, root);
  const auto expected = make_model(static_cast<std::uint64_t>(root));
  for (const auto& item : model->named_parameters()) {
    expect_equal(item.value(), expected->named_parameters()[item.key()], item.key());
  }
  expect_equal(model->named_buffers()["2.running_mean"], torch::full({8}, 1.0 * root), "a buffer");
  auto columns = torch::full({3, 2}, rank()).t();
  rt::broadcast_parameters(std::vector<torch::Tensor>{columns}, root);
  expect_equal(columns, torch::full({2, 3}, root), "a vector of tensors, not contiguous");

  // Each rank starts from another state; afterwards all continue from the root's.
  const auto run = [](nn::Sequential& some, Optimizer& optimizer, int steps) {
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      loss_of(some, inputs_of(step)).backward();
      optimizer.step();
    }
  };
  auto mine = make_plain_model(3);
  auto roots = make_plain_model(3);
  torch::optim::Adam adam(mine->parameters(), torch::optim::AdamOptions(0.01 * (rank() + 1)));
  torch::optim::Adam reference(roots->parameters(), torch::optim::AdamOptions(0.01 * (root + 1)));
  run(mine, adam, rank() + 1);
  run(roots, reference, root + 1);
  rt::broadcast_parameters(*mine, root);
  rt::broadcast_optimizer_state(adam, root);
  run(mine, adam, 2);
  run(roots, reference, 2);
  expect_same_parameters(mine, roots, "the root's state and learning rate");

  torch::optim::SGD fresh(mine->parameters(), torch::optim::SGDOptions(0.1 + rank()));
  rt::broadcast_optimizer_state(fresh);
  const auto& options = fresh.param_groups()[0].options();
  expect(static_cast<const torch::optim::SGDOptions&>(options).lr() == 0.1, "before any step");

  if (size() > 1) {
    const auto parameters =
        rank() == 0 ? mine->parameters() : std::vector<torch::Tensor>{mine->parameters()[0]};
    torch::optim::SGD other(parameters, torch::optim::SGDOptions(0.1));
    expect_throws<InvalidArgumentError>([&] { rt::broadcast_optimizer_state(other); },
                                        "the state of rank 0 does not fit");
  }
}

}  // namespace

void test_optimizer() {
  test_training();
  test_compression();
  test_destruction_in_flight();
  test_gradients();
  test_parameters_that_come_twice();
  test_parameters_that_change();
  test_parameters_that_were_frozen();
  test_graphs_of_parameters_that_change();
  test_bad_input();
  test_hooks_that_throw();
  test_process_set();
  test_broadcasts();
}
