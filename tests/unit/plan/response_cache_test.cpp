// The response cache, compared with a plain list.
#include "plan/response_cache.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <random>

#include "core/strings.h"

namespace rueda::test::response_cache_test {

namespace {

Response response_of(const std::string& name, std::int64_t rows) {
  Response response;
  response.request.name = name;
  response.request.shape = {rows};
  return response;
}

}  // namespace

TEST_CASE("the cache keeps what was used last, each under a number that serves once") {
  const std::int64_t capacity = GENERATE(0, 1, 3, 8);
  std::mt19937 random(static_cast<unsigned>(capacity));
  ResponseCache cache(capacity);
  struct Kept {
    std::string name;
    std::int64_t rows;
    std::uint64_t id;
  };
  std::vector<Kept> kept;  // least recently used first
  std::uint64_t last_id = 0;
  bool any = false;
  for (int round = 0; round < 3000; ++round) {
    const std::string name = str("t", random() % 10);
    const auto rows = static_cast<std::int64_t>(random() % 8 == 0 ? 2 : 1);
    Response response = response_of(name, rows);
    const auto kind = random() % 20;
    if (kind == 0) response.kind = ResponseKind::error;
    if (kind == 1) response.absent = {3};
    if (kind == 2) response.request.collective = Collective::add_process_set;
    cache.apply(response);
    const auto known = std::find_if(kept.begin(), kept.end(),
                                    [&](const Kept& entry) { return entry.name == name; });
    if (kind > 2 && capacity > 0) {
      if (known != kept.end() && known->rows == rows) {
        std::rotate(known, known + 1, kept.end());
      } else {
        if (known != kept.end()) kept.erase(known);
        const ResponseCache::Entry* entry = cache.find(name);
        REQUIRE(entry != nullptr);
        REQUIRE((!any || entry->id > last_id));
        any = true;
        last_id = entry->id;
        kept.push_back({name, rows, last_id});
        if (kept.size() > static_cast<std::size_t>(capacity)) {
          REQUIRE(cache.find(kept.front().id) == nullptr);
          kept.erase(kept.begin());
        }
      }
    }
    REQUIRE(cache.size() == kept.size());
    for (const Kept& entry : kept) {
      const ResponseCache::Entry* found = cache.find(entry.id);
      REQUIRE(found != nullptr);
      REQUIRE(found == cache.find(entry.name));
      REQUIRE((found->request.name == entry.name && found->request.shape == Shape{entry.rows}));
    }
  }
}

}  // namespace rueda::test::response_cache_test
