// Submission of collectives: pointers as integers, shapes as lists, dtypes and operations as
// numbers.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

#include "rueda/compression.h"
#include "rueda/types.h"

namespace rueda::bindings {

// Decode numbers from Python. They originate in this module, so a wrong one is an internal error.
[[nodiscard]] void* pointer(std::uintptr_t address);
[[nodiscard]] std::optional<DataType> wire_type(int code);  // negative: none
[[nodiscard]] ReduceOp reduce_op(int code);
[[nodiscard]] Compression compression(int codec, double fraction);
[[nodiscard]] TensorView view(std::uintptr_t address, Shape shape, int dtype,
                              int device = host_device, std::uintptr_t stream = 0);

void bind_collectives(pybind11::module_& module);

}  // namespace rueda::bindings
