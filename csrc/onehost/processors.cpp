#include "onehost/processors.h"

#include <sched.h>

#include <cerrno>
#include <cstddef>
#include <map>
#include <memory>
#include <set>

namespace rueda {

namespace {

constexpr int max_processors = 1 << 16;

struct FreeSet {
  void operator()(cpu_set_t* mask) const { CPU_FREE(mask); }
};

// Matches ranks to processors. A rank whose processors are all taken displaces another (augmenting
// paths).
class ProcessorMatching {
 public:
  explicit ProcessorMatching(const std::vector<std::vector<int>>& allowed) : allowed_(allowed) {}
  bool seat(std::size_t rank) {
    std::set<int> tried;
    return seat(rank, tried);
  }

 private:
  bool seat(std::size_t rank, std::set<int>& tried) {
    for (const int processor : allowed_[rank]) {
      if (!tried.insert(processor).second) continue;
      const auto holder = holders_.find(processor);
      if (holder == holders_.end() || seat(holder->second, tried)) {
        holders_[processor] = rank;
        return true;
      }
    }
    return false;
  }

  const std::vector<std::vector<int>>& allowed_;
  std::map<int, std::size_t> holders_;  // by processor
};

}  // namespace

std::vector<int> allowed_processors() {
  for (int count = 1024; count <= max_processors; count *= 2) {
    const std::unique_ptr<cpu_set_t, FreeSet> mask(CPU_ALLOC(count));
    const std::size_t bytes = CPU_ALLOC_SIZE(count);
    CPU_ZERO_S(bytes, mask.get());
    if (::sched_getaffinity(0, bytes, mask.get()) != 0) {
      if (errno == EINVAL) continue;  // the machine has more
      return {};
    }
    std::vector<int> processors;
    for (int processor = 0; processor < count; ++processor) {
      if (CPU_ISSET_S(processor, bytes, mask.get())) processors.push_back(processor);
    }
    return processors;
  }
  return {};
}

bool can_each_have_a_processor(const std::vector<std::vector<int>>& allowed) {
  ProcessorMatching matching(allowed);
  for (std::size_t rank = 0; rank < allowed.size(); ++rank) {
    if (!allowed[rank].empty() && !matching.seat(rank)) return false;
  }
  return true;
}

}  // namespace rueda
