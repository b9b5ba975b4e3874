// The ranks of a world that members of an earlier one form find each other over the connections
// between their processes, which outlive worlds: no store is needed, and no process is special for
// longer than until the world is formed. The first rank gathers and hands out what all put.
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
    // To another of the processes; what it sends back goes to receive().
    std::function<void(int process, std::vector<std::byte> message)> send;
    // Waits until something has come, and hands it out, at most until the deadline. An error where
    // this world cannot be formed any more.
    std::function<Status(Time deadline)> wait;
    std::string secret;  // of the job
  };

  // `processes`: of each rank its number; `own`: that of this one.
  MemberBootstrap(Links links, std::vector<int> processes, int own);

  // A message that another process's MemberBootstrap for the same world has sent. What none sends
  // is dropped.
  void receive(int process, std::span<const std::byte> message);

  [[nodiscard]] std::string_view name() const override { return "membership"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(processes_.size()); }
  Status put(const std::string& key, const std::string& value) override;
  Expected<std::string> get(const std::string& key) override;
  Status barrier(Time deadline) override;
  void begin_last() override { is_last_ = true; }
  [[nodiscard]] std::string secret() const override { return links_.secret; }

  // Whether the barrier that this rank has come to last is the last, or the next one is.
  [[nodiscard]] bool is_last() const { return is_last_; }
  // Whether the barrier that this rank has come to last has nobody to wait for any more.
  [[nodiscard]] bool is_complete() const { return missing().empty(); }
  // Whether it is the process of the first rank, which ends each barrier.
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
  Entries fresh_;               // since the last barrier: own ones, or on the first rank all
  std::uint64_t barriers_ = 0;  // that this rank has come to
  bool is_last_ = false;        // whether the newest of them is the last, or the next one is
  std::vector<std::uint64_t> reached_;  // by each rank: the first rank keeps it of all
};

}  // namespace rueda
