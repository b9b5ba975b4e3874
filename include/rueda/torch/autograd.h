// Differentiable collectives:
//
//   namespace ad = rueda::libtorch::autograd;
//   torch::Tensor all = ad::allgather(features);   // gradients flow back to every rank's features
//   loss_of(all).backward();
//
// They take, return and throw the same as those of rueda/torch/collectives.h, but a result requires
// a gradient if a tensor does. They block. The backward pass runs a collective of its own for each,
// so every rank of the set must go backwards through the same ones, and in the same order if they
// are unnamed. For a named one, its name is the forward name with ".gradient" appended.
//
// Gradients can be differentiated again: with create_graph, the backward pass runs the collectives
// of this header, whose own gradients are named "NAME.gradient.gradient", and so on. Then also the
// graphs of the gradients must pass through the same collectives on every rank.
//
// Each rank has its own loss, and training minimises the mean over the ranks. So the gradient of
// what a rank contributed to every rank's result is the average of the gradients of those results:
//
//   allreduce        the same reduction of the gradients, with the same factors
//   allgather        this rank's rows of the average of the gradients
//   broadcast        at the root the average of the gradients; zeros elsewhere
//   reduce_scatter   the gathered gradients times the factors; for a sum, times the number of ranks
//   alltoall         the rows of the gradient, back where they came from
//
// `min`, `max`, `product` and the bitwise operations have no gradient: the backward pass throws
// UnsupportedError. torch passes errors of the backward pass on to the caller of backward().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rueda/torch/collectives.h"

namespace rueda::libtorch::autograd {

namespace functions {

using ::torch::autograd::AutogradContext;
using ::torch::autograd::Function;
using ::torch::autograd::variable_list;

[[nodiscard]] inline std::string gradient_name(const std::string& name) {
  return name.empty() ? name : name + ".gradient";
}

// What the backward pass needs from a call's options.
inline void save(AutogradContext* context, const std::string& name, ProcessSet set) {
  context->saved_data["name"] = gradient_name(name);
  context->saved_data["set"] = static_cast<std::int64_t>(set.id);
}

inline void save(AutogradContext* context, ReduceOp op, double prescale, double postscale) {
  context->saved_data["op"] = static_cast<std::int64_t>(op);
  context->saved_data["prescale"] = prescale;
  context->saved_data["postscale"] = postscale;
}

[[nodiscard]] inline CallOptions call_options(AutogradContext* context) {
  return {.name = context->saved_data["name"].toStringRef(),
          .process_set = {static_cast<int>(context->saved_data["set"].toInt())}};
}

[[nodiscard]] inline AllreduceOptions average_options(AutogradContext* context) {
  const CallOptions call = call_options(context);
  return {.name = call.name, .process_set = call.process_set};
}

// Throws where no gradient is defined.
[[nodiscard]] inline AllreduceOptions reduction_options(AutogradContext* context) {
  AllreduceOptions options = average_options(context);
  options.op = static_cast<ReduceOp>(context->saved_data["op"].toInt());
  if (options.op != ReduceOp::sum && options.op != ReduceOp::average) {
    throw UnsupportedError("no gradient is defined through " + std::string(name_of(options.op)) +
                           ": use sum or average, or detach()");
  }
  options.prescale_factor = context->saved_data["prescale"].toDouble();
  options.postscale_factor = context->saved_data["postscale"].toDouble();
  return options;
}

// Whether this backward pass runs under create_graph, so that its results may be differentiated.
// Otherwise it saves the cost of autograd's records.
[[nodiscard]] inline bool records_gradients() {
  return ::torch::GradMode::is_enabled();
}

struct Allreduce : Function<Allreduce> {
  static ::torch::Tensor forward(AutogradContext* context, const ::torch::Tensor& tensor,
                                 const AllreduceOptions& options) {
    save(context, options.name, options.process_set);
    save(context, options.op, options.prescale_factor, options.postscale_factor);
    return libtorch::allreduce(tensor, options);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {of_gradient(gradients[0], reduction_options(context)), {}};
  }

  static ::torch::Tensor of_gradient(const ::torch::Tensor& gradient,
                                     const AllreduceOptions& options) {
    return records_gradients() ? apply(gradient, options) : libtorch::allreduce(gradient, options);
  }
};

struct GroupedAllreduce : Function<GroupedAllreduce> {
  // torch finds tensors in a TensorList, but not in a vector.
  static variable_list forward(AutogradContext* context, ::torch::TensorList tensors,
                               const AllreduceOptions& options) {
    save(context, options.name, options.process_set);
    save(context, options.op, options.prescale_factor, options.postscale_factor);
    return libtorch::grouped_allreduce(tensors.vec(), options);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const AllreduceOptions options = reduction_options(context);
    variable_list result = records_gradients() ? apply(::torch::TensorList(gradients), options)
                                               : libtorch::grouped_allreduce(gradients, options);
    result.emplace_back();
    return result;
  }
};

struct Allgather : Function<Allgather> {
  static ::torch::Tensor forward(AutogradContext* context, const ::torch::Tensor& tensor,
                                 const CallOptions& options) {
    save(context, options.name, options.process_set);
    // Each rank's tensor is refused or has rows, so all ranks gather both or neither.
    ::torch::Tensor result = libtorch::allgather(tensor, options);
    context->saved_data["rows"] = tensor.size(0);
    return result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    AllreduceOptions options = average_options(context);
    const std::int64_t rows = context->saved_data["rows"].toInt();
    const std::string rows_name = options.name.empty() ? options.name : options.name + ".rows";
    const TensorHandle all_rows =
        allgather_async(::torch::tensor({rows}, ::torch::kLong),
                        {.name = rows_name, .process_set = options.process_set});
    const ::torch::Tensor average = Allreduce::of_gradient(gradients[0], options);
    const int mine = rank_in(options.process_set);
    const std::int64_t start = all_rows.wait().narrow(0, 0, mine).sum().item<std::int64_t>();
    return {average.narrow(0, start, rows), {}};
  }

  static ::torch::Tensor of_gradient(const ::torch::Tensor& gradient, const CallOptions& options) {
    return records_gradients() ? apply(gradient, options) : libtorch::allgather(gradient, options);
  }
};

struct Broadcast : Function<Broadcast> {
  static ::torch::Tensor forward(AutogradContext* context, const ::torch::Tensor& tensor, int root,
                                 const CallOptions& options) {
    save(context, options.name, options.process_set);
    context->saved_data["root"] = static_cast<std::int64_t>(root);
    return libtorch::broadcast(tensor, root, options);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    ::torch::Tensor average = Allreduce::of_gradient(gradients[0], average_options(context));
    if (rank() != context->saved_data["root"].toInt()) average.zero_();
    return {std::move(average), {}, {}};
  }
};

struct ReduceScatter : Function<ReduceScatter> {
  static ::torch::Tensor forward(AutogradContext* context, const ::torch::Tensor& tensor,
                                 const ReduceScatterOptions& options) {
    save(context, options.name, options.process_set);
    save(context, options.op, options.prescale_factor, options.postscale_factor);
    return libtorch::reduce_scatter(tensor, options);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const AllreduceOptions options = reduction_options(context);
    double factor = options.prescale_factor * options.postscale_factor;
    if (options.op == ReduceOp::sum) {
      factor *= static_cast<double>(ranks_of(options.process_set).size());
    }
    return {Allgather::of_gradient(gradients[0] * factor, call_options(context)), {}};
  }
};

struct Alltoall : Function<Alltoall> {
  static ::torch::Tensor forward(AutogradContext* context, const ::torch::Tensor& tensor,
                                 const std::vector<std::int64_t>& splits,
                                 const CallOptions& options,
                                 std::vector<std::int64_t>* received_splits) {
    save(context, options.name, options.process_set);
    AlltoallResult result = libtorch::alltoall(tensor, splits, options);
    context->saved_data["received"] = result.received_splits;
    *received_splits = std::move(result.received_splits);
    return result.tensor;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto received = context->saved_data["received"].toIntVector();
    return {of_gradient(gradients[0], received, call_options(context)), {}, {}, {}};
  }

  static ::torch::Tensor of_gradient(const ::torch::Tensor& gradient,
                                     const std::vector<std::int64_t>& splits,
                                     const CallOptions& options) {
    if (!records_gradients()) return libtorch::alltoall(gradient, splits, options).tensor;
    std::vector<std::int64_t> received_splits;  // those of the forward pass
    return apply(gradient, splits, options, &received_splits);
  }
};

}  // namespace functions

// Each is like its namesake in rueda/torch/collectives.h, with the gradient given at the top of
// this file.

inline ::torch::Tensor allreduce(const ::torch::Tensor& tensor,
                                 const AllreduceOptions& options = {}) {
  return functions::Allreduce::apply(tensor, options);
}

inline std::vector<::torch::Tensor> grouped_allreduce(const std::vector<::torch::Tensor>& tensors,
                                                      const AllreduceOptions& options = {}) {
  return functions::GroupedAllreduce::apply(::torch::TensorList(tensors), options);
}

inline ::torch::Tensor allgather(const ::torch::Tensor& tensor, const CallOptions& options = {}) {
  return functions::Allgather::apply(tensor, options);
}

inline ::torch::Tensor broadcast(const ::torch::Tensor& tensor, int root,
                                 const CallOptions& options = {}) {
  return functions::Broadcast::apply(tensor, root, options);
}

inline ::torch::Tensor reduce_scatter(const ::torch::Tensor& tensor,
                                      const ReduceScatterOptions& options = {}) {
  return functions::ReduceScatter::apply(tensor, options);
}

inline AlltoallResult alltoall(const ::torch::Tensor& tensor,
                               const std::vector<std::int64_t>& splits = {},
                               const CallOptions& options = {}) {
  AlltoallResult result;
  result.tensor = functions::Alltoall::apply(tensor, splits, options, &result.received_splits);
  return result;
}

}  // namespace rueda::libtorch::autograd
