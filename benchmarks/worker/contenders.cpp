#include "contenders.h"

#include <new>
#include <stdexcept>

namespace rueda_bench {

std::unique_ptr<Contender> make_contender(const std::string& name, const std::string& argument) {
  if (name == "rueda") return make_rueda(argument);
  if (name == "mpi") return make_mpi(argument);
  if (name == "limits") return make_limits(argument);
  throw std::runtime_error("no contender is called " + name);
}

std::shared_ptr<std::byte[]> private_memory(std::size_t bytes) {
  constexpr std::align_val_t alignment{64};
  auto* const memory = static_cast<std::byte*>(::operator new[](bytes, alignment));
  return {memory, [](std::byte* freed) { ::operator delete[](freed, alignment); }};
}

}  // namespace rueda_bench
