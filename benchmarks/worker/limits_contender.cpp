// What the machine could do at best, measured like every contender: the cost of meeting, and of
// moving the bytes that a collective has to move.
#include <sched.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "contenders.h"
#include "limit_loops.h"
#include "shared_area.h"

namespace rueda_bench {
namespace {

struct Place {
  int rank = 0;
  int ranks = 1;
  const SharedArea* area = nullptr;
  std::vector<int> processors;
};

// Keeps this thread on one processor as long as it lives.
class Pinned {
 public:
  explicit Pinned(int processor) {
    CPU_ZERO(&before_);
    ::sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    ::sched_setaffinity(0, sizeof(one), &one);
  }
  ~Pinned() { ::sched_setaffinity(0, sizeof(before_), &before_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  cpu_set_t before_;
};

// Two ranks on two processors: each writes a line of its own and waits for the other's.
class FlagExchange final : public Call {
 public:
  FlagExchange(const Work& work, const Place& place)
      : own_(place.area->word(place.rank, 1)),
        peer_(place.area->word(1 - std::min(place.rank, 1), 1)),
        pinned_(place.processors[place.rank == 0 ? 0 : 1]) {
    input_ = output_ = private_memory(std::max(work.input_bytes(), std::size_t{1}));
    own_.store(0);
  }
  void run() override {
    own_.store(++sequence_, std::memory_order_release);
    while (peer_.load(std::memory_order_acquire) < sequence_) relax();
  }
  [[nodiscard]] int participants(int /*ranks*/) const override { return 2; }

 private:
  std::atomic<std::uint64_t>& own_;
  std::atomic<std::uint64_t>& peer_;
  std::uint64_t sequence_ = 0;
  Pinned pinned_;
};

// Two ranks on one processor: each waits for the other's line and yields meanwhile.
class YieldHandoff final : public Call {
 public:
  YieldHandoff(const Work& work, const Place& place)
      : rank_(place.rank),
        own_(place.area->word(place.rank, 1)),
        peer_(place.area->word(1 - std::min(place.rank, 1), 1)),
        pinned_(place.processors[0]) {
    input_ = output_ = private_memory(std::max(work.input_bytes(), std::size_t{1}));
    own_.store(0);
  }
  void run() override {
    for (int i = 0; i < turns; ++i) {
      ++sequence_;
      if (rank_ == 0) own_.store(sequence_, std::memory_order_release);
      while (peer_.load(std::memory_order_acquire) < sequence_) ::sched_yield();
      if (rank_ == 1) own_.store(sequence_, std::memory_order_release);
    }
  }
  [[nodiscard]] int participants(int /*ranks*/) const override { return 2; }
  [[nodiscard]] int steps() const override { return 2 * turns; }

 private:
  static constexpr int turns = 50;
  int rank_;
  std::atomic<std::uint64_t>& own_;
  std::atomic<std::uint64_t>& peer_;
  std::uint64_t sequence_ = 0;
  Pinned pinned_;
};

// memcpy and a += b, on rank 0 or on all ranks at once.
class Move final : public Call {
 public:
  Move(const Work& work, bool adds, bool alone) : work_(work), adds_(adds), alone_(alone) {
    input_ = private_memory(work.input_bytes());
    output_ = private_memory(work.input_bytes());
    std::memset(output_.get(), 0, work.input_bytes());
  }
  void run() override {
    if (adds_) {
      add(reinterpret_cast<float*>(output_.get()), reinterpret_cast<const float*>(input_.get()),
          work_.input_count);
    } else {
      std::memcpy(output_.get(), input_.get(), work_.input_bytes());
    }
  }
  [[nodiscard]] int participants(int ranks) const override { return alone_ ? 1 : ranks; }

 private:
  const Work& work_;
  bool adds_;
  bool alone_;
};

// Reads the next rank's memory in pieces that stay in the second cache. `alone`: rank 0 only.
class VmRead final : public Call {
 public:
  VmRead(const Work& work, const Place& place, bool alone)
      : work_(work), place_(place), reads_(!alone || place.rank == 0), alone_(alone) {
    input_ = private_memory(work.input_bytes());
    output_ = private_memory(piece);
    place.area->word(place.rank, 2).store(static_cast<std::uint64_t>(::getpid()));
    place.area->word(place.rank, 3).store(reinterpret_cast<std::uintptr_t>(input_.get()));
  }
  void run() override {
    if (!reads_) return;
    const int peer = (place_.rank + 1) % place_.ranks;
    const auto process = static_cast<pid_t>(place_.area->word(peer, 2).load());
    const auto address = static_cast<std::uintptr_t>(place_.area->word(peer, 3).load());
    for (std::size_t at = 0; at < work_.input_bytes(); at += piece) {
      const std::size_t bytes = std::min(piece, work_.input_bytes() - at);
      const iovec local{output_.get(), bytes};
      const iovec remote{reinterpret_cast<void*>(address + at), bytes};
      if (::process_vm_readv(process, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes)) {
        refusal_ = std::string("process_vm_readv: ") + std::strerror(errno);
        return;
      }
    }
  }
  [[nodiscard]] int participants(int ranks) const override { return alone_ ? 2 : ranks; }
  [[nodiscard]] std::string refusal() const override { return refusal_; }

 private:
  static constexpr std::size_t piece = std::size_t{256} << 10;
  const Work& work_;
  const Place& place_;
  bool reads_;
  bool alone_;
  std::string refusal_;
};

// The loads and stores of an allreduce of float32 in shared memory, on huge pages: this rank's
// slice of all ranks' buffers. Nobody waits for anybody.
class SharedSum final : public Call {
 public:
  SharedSum(const Work& work, const Place& place, bool streams) : place_(place), streams_(streams) {
    if (work.input_bytes() > place.area->room_bytes()) throw Unsupported("no room for this size");
    for (int rank = 0; rank < place.ranks; ++rank)
      buffers_.push_back(reinterpret_cast<float*>(place.area->room(rank)));
    place.area->furnish_room(place.rank, work.input_bytes());
    // Nobody owns the room.
    input_ = output_ = {std::shared_ptr<std::byte[]>(), place.area->room(place.rank)};
    begin_ = bound(work.input_count, place.rank);
    end_ = bound(work.input_count, place.rank + 1);
  }
  void run() override {
    if (streams_) {
      sum_into_all_streaming(buffers_, begin_, end_);
    } else {
      sum_into_all(buffers_, begin_, end_);
    }
  }

 private:
  // Slices begin at cache lines.
  [[nodiscard]] std::size_t bound(std::size_t count, int rank) const {
    constexpr std::size_t line = 16;
    const std::size_t lines = (count + line - 1) / line;
    const auto part = static_cast<std::size_t>(rank);
    return std::min(count, lines * part / static_cast<std::size_t>(place_.ranks) * line);
  }

  const Place& place_;
  bool streams_;
  std::vector<float*> buffers_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

class Limits final : public Contender {
 public:
  explicit Limits(const std::string& place) {
    const std::size_t slash = place.find('/');
    if (slash == std::string::npos) throw std::runtime_error("the limits need RANK/SIZE");
    place_.rank = std::stoi(place);
    place_.ranks = std::stoi(place.substr(slash + 1));
  }
  [[nodiscard]] int rank() const override { return place_.rank; }
  [[nodiscard]] int size() const override { return place_.ranks; }

  void join(const SharedArea& area, const std::vector<int>& processors) override {
    place_.area = &area;
    place_.processors = processors;
  }

  [[nodiscard]] std::unique_ptr<Call> prepare(const Work& work) override {
    const std::string& what = work.collective;
    if (what == "flag_exchange") {
      if (place_.processors.size() < 2) throw Unsupported("there is one processor only");
      return std::make_unique<FlagExchange>(work, place_);
    }
    if (what == "yield_handoff") return std::make_unique<YieldHandoff>(work, place_);
    if (what == "copy_one") return std::make_unique<Move>(work, false, true);
    if (what == "copy_all") return std::make_unique<Move>(work, false, false);
    if (what == "add_one") return std::make_unique<Move>(work, true, true);
    if (what == "add_all") return std::make_unique<Move>(work, true, false);
    if (what == "vm_read_one") return std::make_unique<VmRead>(work, place_, true);
    if (what == "vm_read_all") return std::make_unique<VmRead>(work, place_, false);
    if (what == "shared_sum") return std::make_unique<SharedSum>(work, place_, false);
    if (what == "shared_sum_streaming") {
      if (!has_streaming_stores()) throw Unsupported("no streaming stores are known here");
      return std::make_unique<SharedSum>(work, place_, true);
    }
    throw Unsupported("no limit is called " + what);
  }

 private:
  Place place_;
};

}  // namespace

std::unique_ptr<Contender> make_limits(const std::string& place) {
  return std::make_unique<Limits>(place);
}

}  // namespace rueda_bench
