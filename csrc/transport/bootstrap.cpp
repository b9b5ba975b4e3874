#include "transport/bootstrap.h"

#include "core/strings.h"

namespace rueda {

namespace {

// The first character of a value.
constexpr char value_mark = '+';
constexpr char error_mark = '-';
constexpr char accusation_mark = '?';  // an error that names another rank, which may say why

char mark_of(const Status& status, int own_rank) {
  if (status.ok()) return value_mark;
  return status.peer() < 0 || status.peer() == own_rank ? error_mark : accusation_mark;
}

}  // namespace

Expected<std::vector<std::string>> Bootstrap::allgather(const std::string& key,
                                                        const Expected<std::string>& own,
                                                        Time deadline) {
  const char mark = mark_of(own.status(), world_rank(rank()));
  const Status stored =
      put(str(key, "/", rank()), mark + (own.ok() ? own.value() : own.status().to_string()));
  // Even if this rank could not store anything, so that the others need not wait for it.
  if (Status met = barrier(deadline); !met.ok()) return met;
  if (!stored.ok()) return stored;
  std::vector<std::string> all;
  Status accusation;
  for (int peer = 0; peer < size(); ++peer) {
    const auto found = get(str(key, "/", peer));
    const int name = world_rank(peer);
    if (!found.ok()) {
      return Status(ErrorCode::initialization, str("rank ", name, " sent nothing"), name)
          .because(found.status());
    }
    const std::string& value = found.value();
    if (value.starts_with(value_mark)) {
      all.push_back(value.substr(1));
      continue;
    }
    const bool accuses = value.starts_with(accusation_mark);
    const bool is_marked = accuses || value.starts_with(error_mark);
    Status error(ErrorCode::initialization,
                 str("rank ", name, ": ", is_marked ? value.substr(1) : value), name);
    if (!accuses) return error;
    if (accusation.ok()) accusation = std::move(error);
  }
  if (!accusation.ok()) return accusation;
  return all;
}

Status Bootstrap::agree(const std::string& key, const Status& own, Time deadline) {
  using Nothing = Expected<std::string>;
  const Status all =
      allgather(key, own.ok() ? Nothing(std::string()) : Nothing(own), deadline).status();
  return mark_of(own, world_rank(rank())) == error_mark ? own : all;
}

}  // namespace rueda
