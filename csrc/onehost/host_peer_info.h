// What each rank of a host tells the others before they share memory.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "onehost/direct_access.h"

namespace rueda {

struct HostPeerInfo {
  int process = -1;
  bool tells_its_end = false;      // passes a descriptor of its process
  bool fences_for_others = false;  // when it goes to sleep, see wake.h
  RemoteProbe probe;               // without its owner
  std::vector<int> processors;     // that it may run on
  int ranks_at_once = 0;           // how many the processor time suffices for; 0: all
  std::string address;             // of rank 0, for the exchange of descriptors
  std::string world;               // of rank 0: the word that only its ranks know

  [[nodiscard]] std::string encode() const;
  [[nodiscard]] static Expected<HostPeerInfo> decode(int rank, const std::string& text);
};

}  // namespace rueda
