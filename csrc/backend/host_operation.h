// A collective of a channel's members as an operation of the engine.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/backend.h"

namespace rueda {

template <class Collective>
class HostOperation : public Operation {
 public:
  template <class... Arguments>
  explicit HostOperation(const Lane& lane, Arguments&&... arguments)
      : members_(*lane.members),
        counters_(*lane.counters),
        collective_(*lane.channel, std::forward<Arguments>(arguments)...) {}

  // Of a collective that does not begin by itself: in the channel's turn `ticket`.
  void start(std::uint64_t ticket) { collective_.start(ticket); }

  bool advance() override {
    if (collective_.done()) return false;
    const bool moved = collective_.advance();
    if (collective_.done()) {
      counters_.bytes_reduced.add(collective_.traffic().combined);
      counters_.bytes_taken.add(collective_.traffic().taken);
      counters_.bytes_through_kernel.add(collective_.traffic().kernel);
    }
    return moved;
  }
  [[nodiscard]] bool done() const override { return collective_.done(); }
  [[nodiscard]] const Status& status() const override { return collective_.status(); }
  [[nodiscard]] bool uses_transport() const override { return false; }
  [[nodiscard]] std::vector<int> awaited() const override {
    std::vector<int> ranks;
    for (const int member : collective_.awaited()) {
      ranks.push_back(members_[static_cast<std::size_t>(member)]);
    }
    return ranks;
  }

 private:
  const std::vector<int>& members_;  // world ranks
  TransferCounters& counters_;
  Collective collective_;
};

}  // namespace rueda
