// Every rank sends rows to every other rank: first the row counts, then the rows, all pairs at
// once.
#pragma once

#include <vector>

#include "backend/backend.h"

namespace rueda {

class AlltoallOperation : public Operation {
 public:
  AlltoallOperation(const Lane& lane, AlltoallInput input, AllocateRows allocate);

  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override;

 private:
  void exchange_counts();
  void exchange_rows();
  [[nodiscard]] std::vector<std::size_t> offsets_of(const std::vector<std::int64_t>& rows) const;
  // Whether all `tickets` are done; an error among them ends the operation.
  bool all_done(const std::vector<Ticket>& tickets);

  Lane lane_;
  AlltoallInput input_;
  AllocateRows allocate_;
  std::vector<std::int64_t> received_rows_;
  std::vector<Ticket> sends_;
  std::vector<Ticket> counts_;
  std::vector<Ticket> rows_;
  bool counts_known_ = false;
  bool done_ = false;
  Status status_;
};

}  // namespace rueda
