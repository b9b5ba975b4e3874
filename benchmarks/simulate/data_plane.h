// Executes what the ranks have agreed on: batches of tensors, over rings, hierarchies of them, or
// by recursive doubling or halving or along trees, as the engine's plans and its table of
// algorithms say.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "operations.h"
#include "plan/set_hosts.h"

namespace rueda::simulate {

// Tensors that are reduced together; the same on all ranks, under the same number.
struct Batch {
  std::uint64_t number = 0;  // from 1 on
  std::vector<std::size_t> tensors;
  std::int64_t elements = 0;

  // Into a fusion buffer.
  [[nodiscard]] bool is_packed() const { return tensors.size() > 1; }
  [[nodiscard]] std::int64_t bytes() const;
};

class DataPlane {
 public:
  // `finished`: a rank has finished a batch.
  using Finished = std::function<void(int rank, const Batch& batch)>;

  DataPlane(const Settings& settings, const SetHosts& hosts, Timeline& timeline, Links& links,
            Finished finished);

  // The batch lives as long as it is under way.
  void start(int rank, const Batch& batch);
  // An event of EventKind::data, direct or wake.
  void receive(const Event& event);
  // Fetches from memory the operation that an event is for which comes a little later: with ten
  // thousand ranks it would be waited for most of the time.
  void fetch_ahead() const;

  // Batches under way on a rank.
  [[nodiscard]] std::size_t running(int rank) const { return at(rank).running.size(); }
  // The most that a rank has ever held at a time in fusion buffers and staging.
  [[nodiscard]] std::int64_t peak_buffer_bytes() const { return peak_buffer_bytes_; }

 private:
  struct Running {
    const Batch* batch;
    std::unique_ptr<Operation> operation;
    std::int64_t buffer_bytes;
  };
  struct Rank {
    std::vector<Running> running;
    std::int64_t buffer_bytes = 0;
  };

  [[nodiscard]] const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  void advance(int rank, std::size_t index);
  std::unique_ptr<Operation> operation(int rank, const Batch& batch);
  std::unique_ptr<Operation> ring(int rank, std::uint64_t key, int place,
                                  const std::vector<int>& members, std::int64_t elements);
  std::unique_ptr<Operation> hierarchy(int rank, const Batch& batch, Algorithm algorithm);
  [[nodiscard]] std::int64_t buffer_bytes(const Batch& batch) const;

  const Settings& settings_;
  const SetHosts& hosts_;
  const std::vector<int> all_;  // ranks
  const std::int64_t chunk_bytes_;
  Fabric fabric_;
  const Finished finished_;
  HostStages stages_;
  std::vector<Rank> ranks_;
  // Plans are the same for all rings of one length, but for the rank: by ranks and elements.
  std::map<std::pair<std::size_t, std::int64_t>, RingPlan> ring_plans_;
  std::int64_t peak_buffer_bytes_ = 0;
};

}  // namespace rueda::simulate
