// The process that has started this one, where that is an agent of torchrun: it ends its ranks,
// unless it is killed itself, and then nobody does.
#pragma once

#include <string_view>

namespace rueda {

// What a process can see of who has started it.
struct Ancestry {
  int parent = 0;              // at present; 0 where it is of another namespace
  int noted_parent = 0;        // when this library was loaded; 0 where that was another process
  bool leads_session = false;  // as those do that torchrun has started, and none that these start
  std::string_view parent_line{};     // the command line of `parent`; empty where it cannot be read
  std::string_view parent_program{};  // its executable, which it cannot rename; the same
};

// Whether the agent of a rank of torchrun's has certainly ended. Before the library is loaded only
// what has become the rank's parent tells: an agent is a Python, and what takes orphans mostly not.
// One that is started by way of Python, such as `tini -- python`, counts as an agent.
[[nodiscard]] bool has_lost_agent(const Ancestry& ancestry);

// The same of this process.
[[nodiscard]] bool has_lost_agent();

}  // namespace rueda
