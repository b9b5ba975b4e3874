#include "membership/member_bootstrap.h"

#include <algorithm>

#include "core/strings.h"
#include "plan/wire.h"

namespace rueda {

MemberBootstrap::MemberBootstrap(Links links, std::vector<int> processes, int own)
    : links_(std::move(links)),
      processes_(std::move(processes)),
      rank_(static_cast<int>(std::find(processes_.begin(), processes_.end(), own) -
                             processes_.begin())),
      reached_(processes_.size()) {}

Status MemberBootstrap::put(const std::string& key, const std::string& value) {
  if (!known_.emplace(key, value).second) {
    return Status(ErrorCode::internal, str("'", key, "' is put twice"));
  }
  fresh_.emplace_back(key, value);
  return {};
}

Expected<std::string> MemberBootstrap::get(const std::string& key) {
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  return Status(ErrorCode::initialization, str("nobody has put '", key, "'"));
}

// Tells the first rank that this one has reached the barrier; the first rank tells all when
// everyone has.
Status MemberBootstrap::barrier(Time deadline) {
  ++barriers_;
  reached_[static_cast<std::size_t>(rank_)] = barriers_;
  if (rank_ != 0) {
    links_.send(processes_.front(), encode());
    fresh_.clear();
  }
  while (!missing().empty()) {
    if (const Status waited = links_.wait(deadline); !waited.ok()) return waited;
    if (missing().empty() || Clock::now() < deadline) continue;
    return Status(ErrorCode::initialization,
                  str(describe_ranks(missing()), " did not answer before the deadline"),
                  missing().front());
  }
  if (rank_ == 0) {
    const std::vector<std::byte> message = encode();
    for (std::size_t peer = 1; peer < processes_.size(); ++peer) {
      links_.send(processes_[peer], message);
    }
    fresh_.clear();
  }
  return {};
}

// The ranks that this one waits for: on the first rank all, elsewhere the first rank.
std::vector<int> MemberBootstrap::missing() const {
  std::vector<int> ranks;
  const std::size_t count = rank_ == 0 ? reached_.size() : 1;
  for (std::size_t peer = 0; peer < count; ++peer) {
    if (reached_[peer] < barriers_) ranks.push_back(static_cast<int>(peer));
  }
  return ranks;
}

std::vector<std::byte> MemberBootstrap::encode() const {
  Writer writer;
  writer.unsigned_integer(barriers_);
  writer.unsigned_integer(fresh_.size());
  for (const auto& [key, value] : fresh_) {
    writer.text(key);
    writer.text(value);
  }
  return writer.take();
}

void MemberBootstrap::receive(int process, std::span<const std::byte> message) {
  const auto found = std::find(processes_.begin(), processes_.end(), process);
  if (found == processes_.end()) return;
  Reader reader(message);
  const std::uint64_t barrier = reader.unsigned_integer();
  const std::uint64_t count = reader.unsigned_integer();
  Entries entries;
  for (std::uint64_t i = 0; i < count && reader.ok(); ++i) {
    std::string key = reader.text();
    std::string value = reader.text();
    entries.emplace_back(std::move(key), std::move(value));
  }
  if (!reader.ok()) return;
  learn(std::move(entries));
  reached_[static_cast<std::size_t>(found - processes_.begin())] = barrier;
}

void MemberBootstrap::learn(Entries entries) {
  for (auto& [key, value] : entries) {
    if (!known_.emplace(key, value).second) continue;  // this rank's own entry coming back
    if (rank_ == 0) fresh_.emplace_back(std::move(key), std::move(value));
  }
}

}  // namespace rueda
