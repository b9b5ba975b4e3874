// Any optimizer of torch::optim, with gradients that are averaged over the ranks.
#pragma once

#include <torch/torch.h>

#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rueda/torch/collectives.h"
#include "rueda/torch/compression.h"
#include "rueda/torch/gradients.h"

namespace rueda::libtorch {

// Steps an optimizer with the gradients of all ranks. Each gradient is reduced as soon as
// backward() has computed it, while backward() goes on.
//
//   torch::optim::Adam adam(model->parameters(), 1e-3);
//   rueda::libtorch::DistributedOptimizer optimizer(adam, model->named_parameters());
//   loss.backward();
//   optimizer.synchronize();  // only if gradients are used or changed before the step
//   torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
//   optimizer.step();
//
// The wrapped optimizer keeps its options and state, so learning rate schedulers and torch::save()
// work on it; it must outlive this object. Use step() and zero_grad() of this object. Every rank of
// the set creates its DistributedOptimizers in the same order.
//
// A parameter without a gradient on this rank contributes zeros, since it may have one elsewhere;
// its gradient is always defined after a step. A parameter that does not require a gradient is left
// out, which must be the case on every rank. Gradients are dense and need not be contiguous; sparse
// ones are refused. A gradient that is replaced between backward() and step() is overwritten with
// the reduced one, and step() throws InvalidArgumentError on a rank where its shape has changed. So
// change gradients, for example to unscale them, after synchronize().
//
// With options.compression, fewer bytes travel, for all gradients or by parameter name:
//
//   using enum rueda::CodecKind;
//   DistributedOptimizer optimizer(adam, model->named_parameters(), {.compression = int8});
//   {.compression = {{{"*.bias", {}}, {"embedding.*", {top_k, 0.01}}, {"*", {int8}}}}}
//
// Not thread-safe; backward() may run in any thread.
class DistributedOptimizer {
 public:
  using NamedParameters = ::torch::OrderedDict<std::string, ::torch::Tensor>;

  // Parameter names appear in errors and must be the same on every rank; by default they are made
  // from positions. Of several names, as in a module that is registered twice, the first counts.
  // Throws InvalidArgumentError if a parameter of the optimizer has no name, and
  // for options that make no sense.
  explicit DistributedOptimizer(::torch::optim::Optimizer& optimizer,
                                const DistributedOptimizerOptions& options = {})
      : DistributedOptimizer(optimizer, NamedParameters(), options) {}

  // A template only so that options in braces are never mistaken for names.
  template <std::same_as<NamedParameters> Names>
  DistributedOptimizer(::torch::optim::Optimizer& optimizer, const Names& named_parameters,
                       const DistributedOptimizerOptions& options = {})
      : optimizer_(optimizer), reducer_(std::make_shared<detail::GradientReducer>(options)) {
    for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
      for (auto& [parameter, name] : named(group, named_parameters)) {
        reducer_->add(parameter, name);
      }
    }
  }

  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  // Waits until the gradients are reduced, then takes the optimizer's step. The optimizer may call
  // `closure` several times. Each time, its gradients are reduced and its loss (a scalar) is
  // averaged over the ranks, so that optimizers that decide by the loss decide the same everywhere.
  // Returns what the optimizer's step() does. Throws as allreduce(); then no step has been taken,
  // and the next backward pass starts over.
  ::torch::Tensor step(const ::torch::optim::Optimizer::LossClosure& closure = nullptr) {
    if (closure) {
      return optimizer_.step([&] {
        const ::torch::Tensor loss = closure();
        reducer_->synchronize_unless_done();
        return reducer_->average(loss);
      });
    }
    reducer_->synchronize_unless_done();
    return optimizer_.step();
  }

  // Waits until every parameter's gradient is reduced, so that gradients can be clipped before
  // step(), which does not reduce them again. Throws as allreduce(). step() throws
  // InvalidArgumentError if parameters with a gradient were unfrozen, or got another type or other
  // memory, in between.
  void synchronize() { reducer_->synchronize(); }

  // Clears gradients. Throws InvalidArgumentError while they are being reduced: between backward()
  // and step() or synchronize().
  void zero_grad(bool set_to_none = true) {
    reducer_->expect_nothing_in_flight("zero_grad()");
    reducer_->start_over();
    optimizer_.zero_grad(set_to_none);
  }

  // What error feedback keeps. To resume a run exactly, each rank saves its own with the
  // optimizer's state. The tensors are not copies: the next step changes them.
  [[nodiscard]] CompressionState compression_state() { return reducer_->compression_state(); }
  // Copies it back. Throws InvalidArgumentError for residuals of a different size, and while
  // gradients are being reduced, as zero_grad() does.
  void load_compression_state(const CompressionState& state) {
    reducer_->expect_nothing_in_flight("load_compression_state()");
    reducer_->load_compression_state(state);
  }

  // Adds a group to the optimizer; its parameters are named by their position.
  void add_param_group(const ::torch::optim::OptimizerParamGroup& group) {
    optimizer_.add_param_group(group);
    for (auto& [parameter, name] : named(optimizer_.param_groups().size() - 1, NamedParameters())) {
      reducer_->add(parameter, name);
    }
  }

  // The optimizer that takes the steps.
  [[nodiscard]] ::torch::optim::Optimizer& optimizer() { return optimizer_; }

 private:
  using Named = std::vector<std::pair<::torch::Tensor, std::string>>;

  // The parameters of a group of the optimizer and their names: of several names the first.
  Named named(std::size_t group, const NamedParameters& names) const {
    Named named;
    const auto& parameters = optimizer_.param_groups()[group].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::string position = detail::text("group", group, ".parameter", i);
      named.emplace_back(parameters[i], names.is_empty() ? position : "");
      for (const auto& item : names) {
        if (!item.value().is_same(parameters[i])) continue;
        named.back().second = item.key();
        break;
      }
      if (named.back().second.empty()) {
        throw InvalidArgumentError(
            detail::text("named_parameters lacks a parameter of the optimizer: ", position,
                         " of shape ", parameters[i].sizes()));
      }
    }
    return named;
  }

  ::torch::optim::Optimizer& optimizer_;
  std::shared_ptr<detail::GradientReducer> reducer_;
};

}  // namespace rueda::libtorch
