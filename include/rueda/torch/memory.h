// Tensors in memory that the ranks of a host share.
#pragma once

#include <cstddef>
#include <memory>

#include "rueda/torch/tensor_handle.h"

namespace rueda::libtorch {

// A CPU tensor of zeros that the other ranks of the host can reach directly, which makes operations
// on it the fastest (see rueda::allocate()). For tensors that are reduced repeatedly: buffers, or a
// parameter's gradient,
//
//   weight.mutable_grad() = rt::empty(weight.sizes(), weight.scalar_type());
//
// which stays there if the optimizer zeroes gradients instead of dropping them (zero_grad(false)).
// Throws UnsupportedError for a dtype that Rueda does not support.
[[nodiscard]] inline ::torch::Tensor empty(::torch::IntArrayRef sizes,
                                           ::torch::ScalarType dtype = ::torch::kFloat) {
  const auto type = data_type_of(dtype);
  if (!type) throw UnsupportedError(detail::text("the dtype ", dtype, " is not supported"));
  const auto options = ::torch::TensorOptions().dtype(dtype);
  const auto elements = static_cast<std::size_t>(c10::multiply_integers(sizes));
  if (elements == 0) return ::torch::empty(sizes, options);
  const std::shared_ptr<std::byte[]> memory = allocate(elements * size_of(*type));
  return ::torch::from_blob(memory.get(), sizes, [memory](void*) {}, options);
}

}  // namespace rueda::libtorch
