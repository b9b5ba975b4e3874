// What tells of the end of a peer's process, if it is on this host, before the kernel closes its
// sockets.
#pragma once

#include <functional>

namespace rueda {

struct PeerEnd {
  int fd = -1;  // readable when has_ended() is about to be true; -1: nothing tells
  // Whether nothing of the process runs any more. Keeps `fd` open.
  std::function<bool()> has_ended;
};

}  // namespace rueda
