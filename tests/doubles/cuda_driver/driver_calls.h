// The entry points that the double of NCCL calls.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {
int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes);
int cuMemFree_v2(std::uint64_t address);
}
