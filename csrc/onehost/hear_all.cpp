#include "onehost/hear_all.h"

#include "core/strings.h"

namespace rueda {

namespace {

constexpr char fine = '+';
constexpr char failed = '-';

}  // namespace

Expected<std::vector<std::string>> hear_all(Bootstrap& bootstrap, const std::string& round,
                                            const Expected<std::string>& own, Time deadline) {
  const std::string words = own ? fine + own.value() : failed + own.status().to_string();
  const Status put = bootstrap.put(str(round, "/", bootstrap.rank()), words);
  // Also where this rank could not tell anything, so that the others need not wait for it.
  if (Status met = bootstrap.barrier(deadline); !met) return met;
  if (!put) return put;
  std::vector<std::string> all;
  for (int peer = 0; peer < bootstrap.size(); ++peer) {
    const auto heard = bootstrap.get(str(round, "/", peer));
    if (!heard) return heard.status();
    if (!heard.value().starts_with(fine)) {
      const std::string reason = heard.value().substr(heard.value().empty() ? 0 : 1);
      return Status(ErrorCode::initialization, str("rank ", peer, ": ", reason), peer);
    }
    all.push_back(heard.value().substr(1));
  }
  return all;
}

}  // namespace rueda
