// The process that started this one, if it is a torchrun agent. An agent ends its ranks, unless it
// is killed itself, and then nobody does.
#pragma once

#include <string_view>
#include <vector>

namespace rueda {

// State when this library was loaded, in this process or in one it was forked from.
struct Noted {
  int process = 0;
  int parent = 0;        // of that process; 0 if it is in another namespace
  bool is_rank = false;  // whether torchrun started that process, or an ancestor
};

// What a process can see of its ancestors.
struct Ancestry {
  // The process, its parent, and so on up to 1, or to 0 if no more is visible.
  std::vector<int> line{};
  Noted noted{};
  bool leads_session = false;         // true for those started by torchrun, not for their children
  std::string_view parent_line{};     // the parent's command line; empty if it cannot be read
  std::string_view parent_program{};  // its executable, which it cannot rename; likewise
};

// Whether the agent of a torchrun rank, or a process between them, has certainly ended. In a fork
// of a process that had loaded the library: if that process was a rank, its agent is that process's
// parent; otherwise that process may be the agent itself, as when torchrun calls a function in its
// own forks. So a fork also counts as lost if its parent ended on purpose, or if it is in its own
// process namespace. If the agent ended before the library was loaded, only the rank's new parent
// is a hint: an agent is a Python process, and one that adopts orphans usually is not. One started
// by way of Python, such as `tini -- python`, counts as an agent.
[[nodiscard]] bool has_lost_agent(const Ancestry& ancestry);

// The same for this process.
[[nodiscard]] bool has_lost_agent();

}  // namespace rueda
