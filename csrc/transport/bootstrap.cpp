#include "transport/bootstrap.h"

#include "core/strings.h"

namespace rueda {

namespace {

// The first character of a value.
constexpr char value_mark = '+';
constexpr char error_mark = '-';

}  // namespace

Expected<std::vector<std::string>> Bootstrap::allgather(const std::string& key,
                                                        const Expected<std::string>& own,
                                                        Time deadline) {
  const std::string marked =
      own.ok() ? value_mark + own.value() : error_mark + own.status().to_string();
  const Status stored = put(str(key, "/", rank()), marked);
  // Even if this rank could not store anything, so that the others need not wait for it.
  if (Status met = barrier(deadline); !met.ok()) return met;
  if (!stored.ok()) return stored;
  std::vector<std::string> all;
  for (int peer = 0; peer < size(); ++peer) {
    const auto found = get(str(key, "/", peer));
    const int name = world_rank(peer);
    if (!found.ok()) {
      return Status(ErrorCode::initialization, str("rank ", name, " sent nothing"), name)
          .because(found.status());
    }
    const std::string& value = found.value();
    if (!value.starts_with(value_mark)) {
      const std::string reason = value.starts_with(error_mark) ? value.substr(1) : value;
      return Status(ErrorCode::initialization, str("rank ", name, ": ", reason), name);
    }
    all.push_back(value.substr(1));
  }
  return all;
}

Status Bootstrap::agree(const std::string& key, const Status& own, Time deadline) {
  using Nothing = Expected<std::string>;
  return allgather(key, own.ok() ? Nothing(std::string()) : Nothing(own), deadline).status();
}

}  // namespace rueda
