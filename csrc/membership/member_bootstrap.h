// Bootstrap for a world formed by members of an earlier one, over the connections between their
// processes, which outlive worlds. It needs no store, and no process has a special role once the
// world is formed. The first rank gathers and distributes what all ranks put.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/bootstrap.h"

namespace rueda {

class MemberBootstrap final : public Bootstrap {
 public:
  struct Links {
    // Sends to another process; its replies go to receive().
    std::function<void(int process, std::vector<std::byte> message)> send;
    // Waits until something has arrived and delivers it, at most until the deadline. An error if
    // this world can no longer be formed.
    std::function<Status(Time deadline)> wait;
    std::string secret;  // of the job
  };

  // `processes`: process number of each rank; `own`: this one's.
  MemberBootstrap(Links links, std::vector<int> processes, int own);

  // A message from another process's MemberBootstrap for the same world. Invalid messages are
  // dropped.
  void receive(int process, std::span<const std::byte> message);

  [[nodiscard]] std::string_view name() const override { return "membership"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(processes_.size()); }
  Status put(const std::string& key, const std::string& value) override;
  Expected<std::string> get(const std::string& key) override;
  Status barrier(Time deadline) override;
  void begin_last() override { is_last_ = true; }
  [[nodiscard]] std::string secret() const override { return links_.secret; }

  // Whether the barrier this rank reached last is the final one, or the next is.
  [[nodiscard]] bool is_last() const { return is_last_; }
  // Whether the barrier this rank reached last waits for nobody any more.
  [[nodiscard]] bool is_complete() const { return missing().empty(); }
  // Whether `process` is that of the first rank, which ends each barrier.
  [[nodiscard]] bool is_first(int process) const { return process == processes_.front(); }

 private:
  using Entries = std::vector<std::pair<std::string, std::string>>;

  [[nodiscard]] std::vector<std::byte> encode() const;
  void learn(Entries entries);
  [[nodiscard]] std::vector<int> missing() const;

  const Links links_;
  const std::vector<int> processes_;
  const int rank_;
  std::map<std::string, std::string> known_;
  Entries fresh_;                       // since the last barrier: own ones; on the first rank, all
  std::uint64_t barriers_ = 0;          // that this rank has reached
  bool is_last_ = false;                // see is_last()
  std::vector<std::uint64_t> reached_;  // by each rank; only the first rank tracks all
};

}  // namespace rueda
