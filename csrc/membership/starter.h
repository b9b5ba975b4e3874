// The process that has started this one, where that is an agent of torchrun: it ends its ranks,
// unless it is killed itself, and then nobody does.
#pragma once

#include <string_view>
#include <vector>

namespace rueda {

// What was the case when this library was loaded, in this process or in one that it was forked
// from.
struct Noted {
  int process = 0;
  int parent = 0;        // of that process; 0 where it is of another namespace
  bool is_rank = false;  // whether torchrun had started that process, or one above it
};

// What a process can see of who has started it.
struct Ancestry {
  // The process, its parent, that one's parent and so on to 1, or to 0 where no more can be seen.
  std::vector<int> line{};
  Noted noted{};
  bool leads_session = false;  // as those do that torchrun has started, and none that these start
  std::string_view parent_line{};     // the parent's command line; empty where it cannot be read
  std::string_view parent_program{};  // its executable, which it cannot rename; the same
};

// Whether the agent of a rank of torchrun's has certainly ended, or a process between them. In a
// fork of a process that had loaded the library: if that process was a rank, its agent is that
// process's parent; otherwise that process may be the agent itself, as where torchrun calls a
// function in forks of its own. So a fork counts as lost whose parent has ended on purpose, or
// that is in a process namespace of its own. Before the library is loaded only what has become the
// rank's parent tells: an agent is a Python, and what takes orphans mostly not. One that is started
// by way of Python, such as `tini -- python`, counts as an agent.
[[nodiscard]] bool has_lost_agent(const Ancestry& ancestry);

// The same of this process.
[[nodiscard]] bool has_lost_agent();

}  // namespace rueda
