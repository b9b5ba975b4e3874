// The kernels compiled by nvcc, embedded in the library.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace rueda {

// A fatbin with code for each architecture; empty if Rueda was built without nvcc.
[[nodiscard]] std::span<const std::byte> kernel_image();
// "nvcc 13.0 for sm_80, sm_90 and sm_100", for messages.
[[nodiscard]] std::string_view kernel_image_origin();

}  // namespace rueda
