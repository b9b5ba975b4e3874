// Models whose gradients are reduced.
#pragma once

#include <string_view>
#include <vector>

#include "settings.h"

namespace rueda::simulate {

// The 161 parameters of torchvision's resnet50 (25,557,032 elements), the last layer first, as a
// backward pass has their gradients. He, Zhang, Ren and Sun, "Deep Residual Learning for Image
// Recognition", 2016.
[[nodiscard]] std::vector<Tensor> resnet50();

// When each tensor is ready, in nanoseconds from the beginning of the backward pass.
[[nodiscard]] std::vector<double> ready_times(const std::vector<Tensor>& tensors, double backward);

}  // namespace rueda::simulate
