#include "onehost/host_peer_info.h"

#include <sstream>

#include "core/strings.h"

namespace rueda {

namespace {

// Stands for an empty text, so that it is one word.
constexpr auto nothing = "-";

std::string as_word(const std::string& text) {
  return text.empty() ? nothing : text;
}

}  // namespace

std::string HostPeerInfo::encode() const {
  std::string text =
      str(process, ' ', tells_its_end, ' ', fences_for_others, ' ', probe.proof_address, ' ',
          probe.places_address, ' ', as_word(address), ' ', as_word(world), ' ', ranks_at_once);
  for (const std::uint64_t word : probe.proof) text += str(' ', word);
  for (const int processor : processors) text += str(' ', processor);
  return text;
}

Expected<HostPeerInfo> HostPeerInfo::decode(int rank, const std::string& text) {
  std::istringstream in(text);
  in.imbue(std::locale::classic());
  HostPeerInfo info;
  in >> info.process >> info.tells_its_end >> info.fences_for_others >> info.probe.proof_address >>
      info.probe.places_address >> info.address >> info.world >> info.ranks_at_once;
  for (std::uint64_t& word : info.probe.proof) in >> word;
  if (!in) {
    return Status(ErrorCode::initialization, str("rank ", rank, " sent unreadable data"), rank);
  }
  if (info.address == nothing) info.address.clear();
  if (info.world == nothing) info.world.clear();
  for (int processor = 0; in >> processor;) info.processors.push_back(processor);
  info.probe.owner = {rank, info.process};
  return info;
}

}  // namespace rueda
