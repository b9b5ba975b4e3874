// Reports the end of a peer's process on this host before the kernel closes its sockets, and ends
// it.
#pragma once

#include <functional>

namespace rueda {

struct PeerEnd {
  int fd = -1;  // readable when has_ended() is about to be true; -1: there is none
  // Whether nothing of the process runs any more. Keeps `fd` open.
  std::function<bool()> has_ended;
  // Kills it, even if it is stopped; false if it cannot be identified with certainty.
  std::function<bool()> kill = {};
};

}  // namespace rueda
