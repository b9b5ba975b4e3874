// The environment in which Rueda calls MPI_Init.
#pragma once

#include <optional>
#include <string>

namespace rueda::mpi {

// Sets what Open MPI needs, and restores the environment afterwards. Other threads must not read
// the environment meanwhile.
class InitEnvironment {
 public:
  InitEnvironment();
  ~InitEnvironment();
  InitEnvironment(const InitEnvironment&) = delete;
  InitEnvironment& operator=(const InitEnvironment&) = delete;

 private:
  bool has_set_home_ = false;
  std::optional<std::string> home_;  // what it was, if it was set
  bool has_set_btl_ = false;
};

}  // namespace rueda::mpi
