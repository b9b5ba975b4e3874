#include "timed_block.h"

#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace rueda_bench {
namespace {

std::int64_t now() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

std::vector<std::byte> as_payload(const std::vector<std::int64_t>& times) {
  std::vector<std::byte> payload(times.size() * sizeof(std::int64_t));
  std::memcpy(payload.data(), times.data(), payload.size());
  return payload;
}

}  // namespace

Message run_block(const Contender& contender, Call& call, const Work& work, FlagBarrier& barrier) {
  barrier.begin_block();
  const int participants = call.participants(contender.size());
  Message answer;
  answer.values["took_part"] = contender.rank() < participants ? "1" : "0";
  answer.values["steps"] = std::to_string(call.steps());
  answer.values["wrong"] = "0";
  if (contender.rank() >= participants) return answer;

  const auto measured = static_cast<std::size_t>(work.iterations);
  std::vector<std::int64_t> times(2 * measured);
  std::size_t wrong = 0;
  const int calls = work.warmup + work.iterations;
  for (int i = 0; i < calls; ++i) {
    work.write_input(call.input(), i);
    barrier.wait(participants);
    if (work.late.count() > 0 && i % participants == contender.rank()) {
      std::this_thread::sleep_for(work.late);  // its processor is free meanwhile
    }
    const std::int64_t entered = now();
    call.run();
    const std::int64_t returned = now();
    if (i >= work.warmup) {
      times[static_cast<std::size_t>(i - work.warmup)] = entered;
      times[static_cast<std::size_t>(i - work.warmup) + measured] = returned;
    }
    // A limit's loop does not wait for the others by itself, and they may use this rank's buffer.
    barrier.wait(participants);
    if (i == work.warmup || i == calls - 1) wrong += work.count_wrong(call.output(), i);
  }
  if (const std::string why = call.refusal(); !why.empty()) throw Unsupported(why);
  answer.values["wrong"] = std::to_string(wrong);
  answer.payload = as_payload(times);
  return answer;
}

}  // namespace rueda_bench
