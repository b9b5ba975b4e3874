// A rank of a group of `rueda bench`: rueda_bench_worker CONTENDER ADDRESS GROUP [ARGUMENT]
//
// It joins its group, connects to the driver and then runs the blocks of calls that the driver asks
// for. Between them it sleeps in read(). It ends when the driver closes the connection.
#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "contender.h"
#include "contenders.h"
#include "message.h"
#include "shared_area.h"
#include "timed_block.h"
#include "work.h"

namespace rueda_bench {
namespace {

// The driver's processors, not those that a launcher has left this rank: "0,1".
std::vector<int> parse_processors(const std::string& text) {
  std::vector<int> processors;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t length = 0;
    processors.push_back(std::stoi(text.substr(at), &length));
    at += length + 1;
  }
  return processors;
}

// Each rank gets a processor of its own, or all of them where there are not enough. Only this
// thread: those that the contender has started stay where they may run.
void place(int rank, int ranks, const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (processors.size() >= static_cast<std::size_t>(ranks)) {
    CPU_SET(processors[static_cast<std::size_t>(rank)], &set);
  } else {
    for (const int number : processors) CPU_SET(number, &set);
  }
  ::sched_setaffinity(0, sizeof(set), &set);
}

Message introduction(const Contender& contender, const std::string& group) {
  Message hello;
  for (const auto& [name, value] : contender.facts()) hello.values["fact." + name] = value;
  hello.values["group"] = group;
  hello.values["rank"] = std::to_string(contender.rank());
  hello.values["pid"] = std::to_string(::getpid());
  return hello;
}

// What was asked for last, and the call that does it. As in a training its buffers stay the same
// for as long as the same is asked for.
struct Prepared {
  std::unique_ptr<Work> work;
  std::unique_ptr<Call> call;  // uses the work
};

Message answer(Contender& contender, Message request, FlagBarrier& barrier, Prepared& last) {
  auto work = std::make_unique<Work>(std::move(request));
  try {
    if (last.call == nullptr || !last.work->is_like(*work)) {
      last.call.reset();
      last.work = std::move(work);
      last.call = contender.prepare(*last.work);
    } else {
      last.work->warmup = work->warmup;
      last.work->iterations = work->iterations;
    }
    return run_block(contender, *last.call, *last.work, barrier);
  } catch (const Unsupported& refusal) {
    last.call.reset();
    Message message;
    message.values["unsupported"] = refusal.what();
    return message;
  }
}

int run(const std::string& name, const std::string& address, const std::string& group,
        const std::string& argument) {
  Connection driver(address);
  const std::unique_ptr<Contender> contender = make_contender(name, argument);
  driver.send(introduction(*contender, group));
  const SharedArea area(driver.receive_descriptor(), contender->size());
  Message request;
  if (!driver.receive(request)) return 0;
  const std::vector<int> processors = parse_processors(request.text("processors"));
  place(contender->rank(), contender->size(), processors);
  const bool yields = static_cast<std::size_t>(contender->size()) > processors.size();
  contender->join(area, processors);
  FlagBarrier barrier(area, contender->rank(), yields);
  Prepared last;
  while (driver.receive(request)) {
    driver.send(answer(*contender, std::move(request), barrier, last));
  }
  return 0;
}

}  // namespace
}  // namespace rueda_bench

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr,
                 "rueda_bench_worker is started by 'rueda bench': "
                 "rueda_bench_worker CONTENDER ADDRESS GROUP [ARGUMENT]\n");
    return 2;
  }
  try {
    return rueda_bench::run(argv[1], argv[2], argv[3], argc > 4 ? argv[4] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rueda_bench_worker %s: %s\n", argv[1], error.what());
    return 1;
  }
}
