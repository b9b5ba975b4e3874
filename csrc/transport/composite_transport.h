// Several links in one world: each pair of ranks uses the one that suits it, such as shared memory
// within a host and MPI between hosts.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace rueda {

class CompositeTransport final : public Transport {
 public:
  // All are for the same rank and world. `link_of`: for each rank of the world, which of `links`
  // serves it; both ranks of a pair must choose the same. At most one has a descriptor to wait for.
  CompositeTransport(std::vector<std::unique_ptr<Transport>> links,
                     std::vector<std::size_t> link_of);

  [[nodiscard]] std::string_view name() const override { return name_; }  // "shm+mpi"
  [[nodiscard]] int rank() const override { return links_.front()->rank(); }
  [[nodiscard]] int size() const override { return static_cast<int>(link_of_.size()); }

  Ticket send(int peer, Tag tag, std::span<const ConstBytes> spans) override {
    return link_to(peer).send(peer, tag, spans);
  }
  Ticket recv(int peer, Tag tag, std::span<const MutableBytes> spans) override {
    return link_to(peer).recv(peer, tag, spans);
  }
  void set_priority(Tag tag, std::int32_t priority) override {
    for (const auto& link : links_) link->set_priority(tag, priority);
  }
  bool progress() override;
  [[nodiscard]] bool has_work() const override;
  [[nodiscard]] std::optional<Time> next_look() const override;
  void end_in_order() override {
    for (const auto& link : links_) link->end_in_order();
  }

  [[nodiscard]] bool requires_polling() const override;
  [[nodiscard]] int wait_fd() const override;
  bool arm() override;
  void disarm() override;
  [[nodiscard]] bool awaits_much() const override;

  void fail(int peer, const Status& why) override { link_to(peer).fail(peer, why); }
  void abort(const Status& reason) override;

 private:
  [[nodiscard]] Transport& link_to(int peer) const {
    return *links_[link_of_[static_cast<std::size_t>(peer)]];
  }

  const std::vector<std::unique_ptr<Transport>> links_;
  const std::vector<std::size_t> link_of_;
  std::string name_;
};

}  // namespace rueda
