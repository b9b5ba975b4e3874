// Reduces gradients during the backward pass.
#pragma once

#include <torch/csrc/autograd/graph_task.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rueda/torch/collectives.h"
#include "rueda/torch/compression.h"

namespace rueda::libtorch {

struct DistributedOptimizerOptions {
  ReduceOp op = ReduceOp::average;  // or sum, over the ranks
  // Sums up the gradients of this many backward passes, then reduces them. They are summed over
  // passes and averaged over ranks: divide the loss by the number of passes to average over both.
  int backward_passes_per_step = 1;
  // f: with average, gradients are divided by f before they are summed up, and the sum by size/f.
  double gradient_predivide_factor = 1.0;
  ProcessSet process_set = {};  // the ranks to average over
  // Which gradients are compressed, and how; only floating-point ones of the CPU.
  CompressionPolicy compression = {};
};

namespace detail {

// Prefix for the gradient names of the next optimizer. Optimizers that coexist must not share
// names; the members of a set create theirs in the same order.
[[nodiscard]] inline std::string next_gradient_prefix(ProcessSet set) {
  static std::mutex mutex;
  static std::map<int, int> optimizers_of_set;
  const std::lock_guard lock(mutex);
  const int number = optimizers_of_set[set.id]++;
  return text("libtorch", set.id == 0 ? "" : text(".set", set.id),
              number == 0 ? "" : text(".", number));
}

// A seed for a parameter's gradients: the same on every rank, different in each step. 64-bit
// FNV-1a.
[[nodiscard]] inline std::uint64_t seed_of(const std::string& name, std::int64_t step) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char letter : name + text("@", step)) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  }
  return hash;
}

// For a hook of a parameter whose node is `accumulator`: whether the gradient is added to the
// parameter's, not only returned by torch::autograd::grad(). For a backward pass to only some
// gradients, autograd notes which nodes are needed.
[[nodiscard]] inline bool is_accumulated(::torch::autograd::Node* accumulator) {
  const auto* const notes = ::torch::autograd::get_current_graph_task_exec_info();
  if (notes == nullptr) return true;
  const auto note = notes->find(accumulator);
  return note == notes->end() || note->second.needed_;
}

// Called by autograd once a gradient has been accumulated in its parameter. LibTorch offers such a
// hook only to Python; one behind the accumulating node does the same in every version.
class AfterAccumulation : public ::torch::autograd::FunctionPostHook {
 public:
  explicit AfterAccumulation(std::function<void()> callback) : callback_(std::move(callback)) {}

  ::torch::autograd::variable_list operator()(
      const ::torch::autograd::variable_list& outputs,
      const ::torch::autograd::variable_list& /*inputs*/) override {
    callback_();
    return outputs;
  }

 private:
  std::function<void()> callback_;
};

// A parameter's gradient is ready after `backward_passes_per_step` backward passes since the last
// synchronize(); their sum is then submitted immediately, under the parameter's name.
class GradientReducer : public std::enable_shared_from_this<GradientReducer> {
 public:
  explicit GradientReducer(const DistributedOptimizerOptions& options)
      : options_(checked(options)), prefix_(next_gradient_prefix(options.process_set)) {}

  ~GradientReducer() {
    for (Watched& watched : watched_) unhook(watched);
  }
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  // Watches a parameter from now on. Does nothing if it is watched already: the parameters of a
  // module that is registered twice come twice.
  void add(const ::torch::Tensor& parameter, const std::string& name) {
    const std::lock_guard lock(mutex_);
    for (const Watched& watched : watched_) {
      if (watched.parameter.is_same(parameter)) return;
    }
    watched_.push_back({parameter, name, options_.backward_passes_per_step});
    watched_.back().is_unreduced = synchronized_ && parameter.grad().defined();
    choose_codec(watched_.back());
    hook(watched_.size() - 1);
  }

  // Submits zeros for gradients that this rank does not have, then waits until every gradient is
  // reduced.
  void synchronize() {
    std::vector<TensorHandle> handles;
    std::vector<std::pair<::torch::Tensor, std::string>> parameters;  // with their names
    {
      const std::lock_guard lock(mutex_);
      for (Watched& watched : watched_) {
        if (!watched.in_flight && watched.parameter.requires_grad()) submit(watched);
        if (!watched.in_flight) continue;
        parameters.emplace_back(watched.parameter, watched.name);
        handles.push_back(*watched.in_flight);
      }
      count_from_zero();
      hook_anew();
      ++steps_;
    }
    const std::vector<::torch::Tensor> gradients = wait_for_all(handles);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const auto& [parameter, name] = parameters[i];
      put_in_place(gradients[i], parameter, name);
    }
    synchronized_ = true;
  }

  // For a step: does not repeat a synchronize() after which nothing changed.
  void synchronize_unless_done() {
    if (synchronized_) {
      expect_hooks();
    } else {
      synchronize();
    }
    synchronized_ = false;
  }

  void start_over() {
    const std::lock_guard lock(mutex_);
    count_from_zero();
    hook_anew();
  }

  void expect_nothing_in_flight(const std::string& call) {
    const std::lock_guard lock(mutex_);
    for (const Watched& watched : watched_) {
      if (!watched.in_flight) continue;
      throw InvalidArgumentError(text(call,
                                      " was called after backward() and before step() or "
                                      "synchronize(), while gradients are being reduced, that of '",
                                      watched.name, "' among them"));
    }
  }

  // Refers to the state itself, not a copy.
  [[nodiscard]] CompressionState compression_state() {
    const std::lock_guard lock(mutex_);
    CompressionState state{.steps = steps_};
    for (const Watched& watched : watched_) {
      if (watched.residual.defined()) state.residuals.emplace(watched.name, watched.residual);
    }
    return state;
  }

  // A parameter that is missing in `state` has lost nothing.
  void load_compression_state(const CompressionState& state) {
    const std::lock_guard lock(mutex_);
    const ::torch::NoGradGuard no_grad;
    for (const Watched& watched : watched_) {
      const auto kept = state.residuals.find(watched.name);
      if (kept == state.residuals.end() || !watched.residual.defined()) continue;
      if (kept->second.numel() == watched.residual.numel()) continue;
      throw InvalidArgumentError(text("the state keeps ", kept->second.numel(),
                                      " elements of compression error for '", watched.name,
                                      "', but the parameter has ", watched.residual.numel()));
    }
    for (Watched& watched : watched_) {
      if (!watched.residual.defined()) continue;
      const auto kept = state.residuals.find(watched.name);
      if (kept == state.residuals.end()) {
        watched.residual.zero_();
      } else {
        watched.residual.copy_(kept->second.reshape({-1}));
      }
    }
    steps_ = state.steps;
  }

  // A loss, averaged over the ranks.
  [[nodiscard]] ::torch::Tensor average(const ::torch::Tensor& loss) const {
    return allreduce(loss, {.name = prefix_ + "/loss", .process_set = options_.process_set});
  }

 private:
  using Accumulator =
      decltype(::torch::autograd::impl::grad_accumulator(std::declval<const ::torch::Tensor&>()));

  struct Watched {
    ::torch::Tensor parameter;
    std::string name;
    int passes_left = 1;
    std::optional<TensorHandle> in_flight = {};
    bool is_unreduced = false;  // had a gradient when it was added after synchronize()
    // The node that adds to the gradient; kept, since autograd otherwise forgets it and its hooks.
    // Null while the parameter requires no gradient.
    Accumulator accumulator = {};
    Compression compression = {};
    ::torch::Tensor residual = {};  // float32, if error feedback keeps it
    unsigned before_accumulation = 0;
    std::uintptr_t after_accumulation = 0;
  };

  static DistributedOptimizerOptions checked(const DistributedOptimizerOptions& options) {
    const double factor = options.gradient_predivide_factor;
    if (options.op != ReduceOp::average && options.op != ReduceOp::sum) {
      throw InvalidArgumentError(
          text("op is ", name_of(options.op), ": gradients are averaged or summed"));
    }
    if (options.backward_passes_per_step < 1) {
      throw InvalidArgumentError(text("backward_passes_per_step is ",
                                      options.backward_passes_per_step, ", which is less than 1"));
    }
    if (!(factor > 0) || (factor != 1.0 && options.op != ReduceOp::average)) {
      throw InvalidArgumentError(
          text("gradient_predivide_factor is ", factor,
               ": it must be positive, and 1 unless gradients are averaged"));
    }
    return options;
  }

  void hook(std::size_t number) {
    Watched& watched = watched_[number];
    if (!watched.parameter.requires_grad()) return;
    // Hooks outlive the reducer if the caller holds the graph.
    const std::weak_ptr<GradientReducer> weak = weak_from_this();
    watched.before_accumulation =
        watched.parameter.register_hook([weak, number](const ::torch::Tensor& /*gradient*/) {
          if (const auto self = weak.lock()) self->before_accumulation(number);
        });
    watched.accumulator = ::torch::autograd::impl::grad_accumulator(watched.parameter);
    watched.after_accumulation =
        watched.accumulator->add_post_hook(std::make_unique<AfterAccumulation>([weak, number] {
          if (const auto self = weak.lock()) self->after_accumulation(number);
        }));
  }

  static void unhook(Watched& watched) {
    if (!watched.accumulator) return;
    watched.accumulator->del_post_hook(watched.after_accumulation);
    watched.parameter.remove_hook(watched.before_accumulation);
    watched.accumulator = {};
  }

  // Whether backward passes tell of the parameter: not if it requires a gradient only since it was
  // added, or if Module::to() or set_data() have made autograd forget its node.
  [[nodiscard]] static bool is_hooked(const Watched& watched) {
    if (!watched.parameter.requires_grad() || !watched.parameter.is_leaf()) return true;
    return watched.accumulator &&
           watched.accumulator == ::torch::autograd::impl::grad_accumulator(watched.parameter);
  }

  void hook_anew() {
    for (std::size_t number = 0; number < watched_.size(); ++number) {
      Watched& watched = watched_[number];
      if (is_hooked(watched)) continue;
      // The node's own hook stays: a graph that is kept from before still tells.
      if (watched.accumulator) watched.parameter.remove_hook(watched.before_accumulation);
      watched.accumulator = {};
      hook(number);
    }
  }

  void expect_hooks() {
    const std::lock_guard lock(mutex_);
    for (const Watched& watched : watched_) {
      if (watched.is_unreduced) {
        throw InvalidArgumentError(
            text("'", watched.name,
                 "' was added with a gradient between synchronize() and "
                 "step(): call zero_grad() after that, and then backward()"));
      }
      if (is_hooked(watched) || !watched.parameter.grad().defined()) continue;
      throw InvalidArgumentError(
          text("'", watched.name,
               "' was given other memory or unfrozen between synchronize() and step(), as by "
               "Module::to() or set_requires_grad(), so that it is not known whether its gradient "
               "has changed since: call zero_grad() after that, and then backward()"));
    }
  }

  // Refuses to add to a gradient that is being reduced. Autograd also calls it when
  // torch::autograd::grad() returns the gradient and adds nothing.
  void before_accumulation(std::size_t number) {
    const std::lock_guard lock(mutex_);
    const Watched& watched = watched_[number];
    if (watched.passes_left > 0 || !is_accumulated(watched.accumulator.get())) return;
    throw InvalidArgumentError(text("the gradient of '", watched.name,
                                    "' was computed more often than backward_passes_per_step=",
                                    options_.backward_passes_per_step,
                                    " before step() or synchronize(): a larger "
                                    "backward_passes_per_step accumulates gradients first"));
  }

  void after_accumulation(std::size_t number) {
    const std::lock_guard lock(mutex_);
    synchronized_ = false;
    Watched& watched = watched_[number];
    if (--watched.passes_left == 0) submit(watched);
  }

  // The gradient may have been replaced, or removed by the optimizer's own zero_grad(), while it
  // was being reduced.
  static void put_in_place(const ::torch::Tensor& reduced, const ::torch::Tensor& parameter,
                           const std::string& name) {
    ::torch::Tensor& gradient = parameter.mutable_grad();
    if (gradient.is_same(reduced)) return;
    if (!gradient.defined()) {
      gradient = reduced;
      return;
    }
    if (gradient.sizes() != reduced.sizes()) {
      throw InvalidArgumentError(text("the gradient of '", name, "' was replaced by one of shape ",
                                      gradient.sizes(), " while that of shape ", reduced.sizes(),
                                      " was being reduced: call synchronize() first"));
    }
    const ::torch::NoGradGuard no_grad;
    gradient.copy_(reduced);
  }

  void choose_codec(Watched& watched) const {
    const ::torch::Tensor& parameter = watched.parameter;
    const CompressionPolicy& policy = options_.compression;
    watched.compression = policy.codec_for(watched.name, parameter.numel());
    if (policy.keeps_residual(watched.compression)) {
      watched.residual = ::torch::zeros({parameter.numel()}, ::torch::kFloat);
    }
  }

  void submit(Watched& watched) const {
    ::torch::Tensor& gradient = watched.parameter.mutable_grad();
    if (!gradient.defined()) {
      count_filled_gradient();
      const ::torch::NoGradGuard no_grad;
      gradient = ::torch::zeros_like(watched.parameter);
    }
    const double factor = options_.gradient_predivide_factor;
    AllreduceOptions options{.name = prefix_ + "/" + watched.name,
                             .op = options_.op,
                             .prescale_factor = 1.0 / factor,
                             .postscale_factor = factor,
                             .process_set = options_.process_set,
                             .compression = watched.compression};
    if (watched.residual.defined()) {
      if (watched.residual.numel() != gradient.numel()) {  // resized: the residual no longer fits
        watched.residual = ::torch::zeros({gradient.numel()}, ::torch::kFloat);
      }
      options.residuals = {watched.residual.data_ptr<float>()};
    }
    options.seed = seed_of(watched.name, steps_);
    watched.in_flight = allreduce_in_place(gradient, options, watched.residual);
  }

  // Restarts the count of backward passes.
  void count_from_zero() {
    synchronized_ = false;
    for (Watched& watched : watched_) {
      watched.passes_left = options_.backward_passes_per_step;
      watched.in_flight.reset();
      watched.is_unreduced = false;
    }
  }

  const DistributedOptimizerOptions options_;
  const std::string prefix_;
  std::mutex mutex_;  // backward passes may run in several threads
  std::vector<Watched> watched_;
  bool synchronized_ = false;  // nothing has changed since synchronize()
  std::int64_t steps_ = 0;     // so that random_k chooses different elements in each step
};

}  // namespace detail
}  // namespace rueda::libtorch
