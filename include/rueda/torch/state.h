// Gives every rank the same model and optimizer state.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "rueda/torch/collectives.h"

namespace rueda::libtorch {

namespace detail {

using NamedTensors = std::vector<std::pair<std::string, ::torch::Tensor>>;

inline void broadcast_named(const NamedTensors& tensors, int root, ProcessSet set) {
  std::vector<TensorHandle> handles;
  for (const auto& [name, tensor] : tensors) {
    handles.push_back(
        broadcast_async_(tensor, root, {.name = "parameter/" + name, .process_set = set}));
  }
  wait_for_all(handles);
}

}  // namespace detail

// Overwrites the tensors of every rank of the set with those of the rank `root`, in place. The same
// number, shapes and dtypes on every rank; any that collectives accept. Throws as broadcast_()
// does, once none of the tensors is in use any more.
inline void broadcast_parameters(const std::vector<::torch::Tensor>& tensors, int root = 0,
                                 ProcessSet set = {}) {
  detail::NamedTensors named;
  for (const ::torch::Tensor& tensor : tensors) {
    named.emplace_back(std::to_string(named.size()), tensor);
  }
  detail::broadcast_named(named, root, set);
}

// The parameters and buffers of a module and of all modules in it, under their names:
// broadcast_parameters(*model). The names appear in errors and must be the same on every rank.
inline void broadcast_parameters(const ::torch::nn::Module& module, int root = 0,
                                 ProcessSet set = {}) {
  detail::NamedTensors named;
  for (const auto& item : module.named_parameters()) named.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) named.emplace_back(item.key(), item.value());
  detail::broadcast_named(named, root, set);
}

namespace detail {

// Broadcasts the root's `bytes`; the other ranks pass nothing.
[[nodiscard]] inline ::torch::Tensor broadcast_bytes(const std::optional<std::string>& bytes,
                                                     int root, const std::string& name,
                                                     ProcessSet set) {
  const auto count = static_cast<std::int64_t>(bytes ? bytes->size() : 0);
  const ::torch::Tensor size = broadcast(::torch::tensor({count}, ::torch::kLong), root,
                                         {.name = name + "/size", .process_set = set});
  const ::torch::Tensor data = ::torch::empty({size.item<std::int64_t>()}, ::torch::kByte);
  if (bytes) std::memcpy(data.data_ptr(), bytes->data(), bytes->size());
  return broadcast_(data, root, {.name = name + "/bytes", .process_set = set});
}

// The device of all parameters, if it is one. Their state belongs there, too; torch would put it on
// the device that it had on the rank that saved it.
[[nodiscard]] inline std::optional<::torch::Device> device_of(
    ::torch::optim::Optimizer& optimizer) {
  std::optional<::torch::Device> device;
  for (const auto& group : optimizer.param_groups()) {
    for (const ::torch::Tensor& parameter : group.params()) {
      if (device && *device != parameter.device()) return std::nullopt;
      device = parameter.device();
    }
  }
  return device;
}

// Loads the state, or leaves the optimizer's unchanged and returns why it cannot be loaded.
[[nodiscard]] inline std::optional<std::string> load_state(::torch::optim::Optimizer& optimizer,
                                                           const ::torch::Tensor& bytes) {
  auto before = std::move(optimizer.state());
  optimizer.state().clear();  // what has no state at the root must have none here
  try {
    std::istringstream stream(std::string(static_cast<const char*>(bytes.data_ptr()),
                                          static_cast<std::size_t>(bytes.numel())));
    ::torch::load(optimizer, stream, device_of(optimizer));
    return std::nullopt;
  } catch (const std::exception& error) {
    optimizer.state() = std::move(before);
    return error.what();
  }
}

}  // namespace detail

// Gives the optimizers of all ranks of the set the state and the options (learning rate and the
// rest) of the one at `root`, through torch::save() and torch::load(); the root's is only read.
// Works for every optimizer that torch::save() can save, which is not LBFGS once it has stepped;
// also before its first step. The state goes to the device of the rank's parameters if they are all
// on one. Collective over the set.
//
// Throws InvalidArgumentError on every rank if the root's state cannot be saved, or if one rank's
// optimizer cannot take it, for example because its parameters differ. That rank keeps its previous
// state, but perhaps not its previous options.
inline void broadcast_optimizer_state(::torch::optim::Optimizer& optimizer, int root = 0,
                                      ProcessSet set = {}) {
  const std::string name = "optimizer_state";
  std::optional<std::string> saved;
  if (rueda::rank() == root) {
    try {
      std::ostringstream stream;
      ::torch::save(optimizer, stream);
      saved = stream.str();
    } catch (const std::exception& error) {
      refuse(name + "/size", set, detail::text("the state cannot be saved: ", error.what())).wait();
    }
  }
  const ::torch::Tensor bytes = detail::broadcast_bytes(saved, root, name, set);
  std::optional<std::string> problem;
  if (!saved) problem = detail::load_state(optimizer, bytes);
  if (problem) {
    refuse(name + "/loaded", set,
           detail::text("the state of rank ", root, " does not fit: ", *problem))
        .wait();
  } else {
    barrier({.name = name + "/loaded", .process_set = set}).wait();
  }
}

}  // namespace rueda::libtorch
