#include "onehost/host_peer_info.h"

#include <sstream>

#include "core/strings.h"

namespace rueda {

namespace {

// A text that may be empty, as one word.
constexpr auto nothing = "-";

std::string as_word(const std::string& text) {
  return text.empty() ? nothing : text;
}

}  // namespace

std::string HostPeerInfo::encode() const {
  std::string text =
      str(process, ' ', tells_its_end, ' ', fences_for_others, ' ', probe.proof_address, ' ',
          probe.places_address, ' ', as_word(address), ' ', as_word(world));
  for (const std::uint64_t word : probe.proof) text += str(' ', word);
  for (const int processor : processors) text += str(' ', processor);
  return text;
}

Expected<HostPeerInfo> HostPeerInfo::decode(int rank, const std::string& text) {
  std::istringstream in(text);
  in.imbue(std::locale::classic());
  HostPeerInfo card;
  in >> card.process >> card.tells_its_end >> card.fences_for_others >> card.probe.proof_address >>
      card.probe.places_address >> card.address >> card.world;
  for (std::uint64_t& word : card.probe.proof) in >> word;
  if (!in) {
    return Status(ErrorCode::initialization, str("rank ", rank, " cannot be understood"), rank);
  }
  if (card.address == nothing) card.address.clear();
  if (card.world == nothing) card.world.clear();
  for (int processor = 0; in >> processor;) card.processors.push_back(processor);
  card.probe.owner = {rank, card.process};
  return card;
}

}  // namespace rueda
