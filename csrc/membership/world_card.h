// What each rank tells the others about itself when the world is formed.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "core/status.h"

namespace rueda {

struct WorldCard {
  std::string host;       // host_identity()
  std::string host_name;  // for people
  int process_id = 0;
  Status shm;  // whether this rank can use shared memory, and MPI for bulk; why not
  Status mpi;
  std::map<std::string, std::string> options;  // those that must agree, as text
};

[[nodiscard]] std::string encode(const WorldCard& card);
// Nothing where it is malformed, as from another version.
[[nodiscard]] std::optional<WorldCard> decode_card(const std::string& text);

}  // namespace rueda
