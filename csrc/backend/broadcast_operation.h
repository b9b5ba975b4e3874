// Broadcast as a pipeline along the ring: each rank forwards a chunk while it receives the next.
#pragma once

#include <deque>

#include "backend/backend.h"

namespace rueda {

class BroadcastOperation : public Operation {
 public:
  BroadcastOperation(const Lane& lane, std::byte* data, std::int64_t bytes, int root);

  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override;

 private:
  [[nodiscard]] std::size_t chunk_size(std::int64_t chunk) const;
  // Removes completed tickets from the front of `tickets`; returns how many.
  std::int64_t take(std::deque<Ticket>& tickets);

  Lane lane_;
  std::byte* data_;
  std::int64_t bytes_;
  std::int64_t chunks_;
  int next_;      // world rank, or -1 at the end of the pipeline
  int previous_;  // world rank, or -1 at the root

  std::int64_t receives_posted_ = 0;
  std::int64_t received_ = 0;
  std::int64_t sends_posted_ = 0;
  std::int64_t sent_ = 0;
  std::deque<Ticket> receiving_;
  std::deque<Ticket> sending_;
  bool done_ = false;
  Status status_;
};

}  // namespace rueda
