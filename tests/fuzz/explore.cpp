// libFuzzer's entry points. The target is named by the environment variable RUEDA_FUZZ_TARGET.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "core/log.h"
#include "fuzz/target.h"

namespace {
const rueda::fuzz::Target* target = nullptr;
}

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  const char* const name = std::getenv("RUEDA_FUZZ_TARGET");
  target = rueda::fuzz::find_target(name == nullptr ? "" : name);
  if (target == nullptr) {
    std::fputs("RUEDA_FUZZ_TARGET names no target\n", stderr);
    std::exit(2);
  }
  rueda::set_log_level(rueda::LogLevel::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  target->run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
