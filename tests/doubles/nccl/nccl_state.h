// What the entry points of the double share: communicators, groups, and what tests have asked for.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda_driver/cuda_double.h"
#include "meeting.h"
#include "nccl_double.h"

namespace rueda::test {

struct Communicator {
  std::shared_ptr<Meeting> meeting;
  int rank = 0;
  int device = 0;
  bool blocking = true;
  std::atomic<bool> in_progress = false;  // a thread of the double's connects, launches, leaves
  std::atomic<bool> given_up = false;     // aborted: whoever waits, stops
  std::atomic<int> running = 0;           // operations in streams
  std::atomic<int> captured = 0;          // operations in graphs that still exist
  std::atomic<std::uint64_t> collectives = 0;  // that streams have been given
  std::atomic<int> in_call = 0;                // threads that sit in a call that takes time
  std::atomic<bool> connecting = false;
  std::atomic<bool> finalizing = false;

  std::mutex mutex;
  std::map<void*, std::string> registrations;  // by handle: the function that made it
  nccl::Result error = nccl::success;
  std::string error_text;
};
// The handle of the window over this memory, which differs from that of its registration.
inline void* window_of(const void* memory) {
  return const_cast<std::byte*>(static_cast<const std::byte*>(memory)) + 1;
}
using CommunicatorReference = std::shared_ptr<Communicator>;

// A call that takes time: no other thread may use the communicator meanwhile.
class InCall {
 public:
  explicit InCall(Communicator& communicator) : communicator_(communicator) {
    ++communicator_.in_call;
  }
  ~InCall() { --communicator_.in_call; }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  Communicator& communicator_;
};

// One call of a group, in a stream. Where that is captured, it is run with each launch of the
// graph.
struct Step {
  CommunicatorReference communicator;
  StreamHandle stream = nullptr;
  bool first = false;                             // sends go before what waits
  bool meets_all = false;                         // a collective, which has a number
  std::function<void(std::uint64_t number)> run;  // 0 where it has none
};

class NcclState final : public NcclDouble {
 public:
  static NcclState& instance();

  void reset(const NcclSettings& settings) override;
  std::vector<NcclCall> calls(int rank) override;
  void fail(const std::string& function, int rank, int nth, nccl::Result code,
            const std::string& text) override;
  void break_communicators(int rank, nccl::Result code, const std::string& text) override;
  void hang(int rank) override;
  void block(int rank) override;
  int blocked_calls() override { return blocked_calls_; }
  void hold_calls(bool held) override { held_ = held; }
  void end_connecting() override { ends_connecting_ = true; }
  int connecting() override;
  int back_pressured_calls() override { return back_pressured_calls_; }
  std::vector<std::string> take_misuse() override;
  int communicators() override;
  int registrations() override;

  [[nodiscard]] NcclSettings settings();
  nccl::Result refuse(const std::string& what);
  std::shared_ptr<Meeting> meeting(const nccl::UniqueId& id, int size);
  nccl::Comm add(CommunicatorReference communicator);
  CommunicatorReference find(nccl::Comm handle);
  void remove(nccl::Comm handle);

  // Counts a call; what a test has planned for it, success for nothing. Calls of no communicator
  // count as rank 0's.
  nccl::Result planned(const std::string& function, int rank = 0);
  // Writes the call down; what it must return, success to go on.
  nccl::Result begin(const NcclCall& call, const CommunicatorReference& communicator);
  // Into the thread's group, or into the stream, or what it is captured into.
  nccl::Result launch(Step step);
  nccl::Result launch_all(std::vector<Step> steps);
  // Works for the communicator now, or in a thread where it does not block.
  using Work = std::function<nccl::Result()>;
  nccl::Result work_for(const CommunicatorReference& communicator, Work work);
  // As long as a call takes: at random.
  void take_time(const Communicator& communicator);
  // Until all ranks have come.
  nccl::Result connect(Communicator& communicator);
  void break_one(const CommunicatorReference& communicator, nccl::Result code,
                 const std::string& text);
  // Whether this rank's operation is the one that hangs.
  bool hangs(const Communicator& communicator);
  // Until the communicator is given up, where this rank's call is the one that blocks; true then.
  bool blocks(const Communicator& communicator);

  // Whether some communicator that is still there has been told of this memory.
  bool is_registered(const void* memory);

  static thread_local int group_depth;
  static thread_local std::vector<Step> group;
  static thread_local std::string last_error;

 private:
  nccl::Result launch_now(std::vector<Step> steps);
  void pass_time();
  // Their own mutexes must not be taken under this object's.
  std::vector<CommunicatorReference> all_communicators();

  struct Failure {
    nccl::Result code;
    std::string text;
  };

  std::mutex mutex_;
  NcclSettings settings_;
  std::map<int, std::vector<NcclCall>> calls_;
  std::map<std::pair<std::string, int>, std::map<int, Failure>> failures_;
  std::map<std::pair<std::string, int>, int> counts_;
  std::set<int> hanging_;
  std::set<int> blocking_;
  std::atomic<int> blocked_calls_ = 0;
  std::atomic<int> back_pressured_calls_ = 0;
  std::atomic<bool> ends_connecting_ = false;
  std::atomic<bool> held_ = false;
  std::vector<std::string> misuse_;
  std::map<std::string, std::shared_ptr<Meeting>> meetings_;
  std::map<nccl::Comm, CommunicatorReference> communicators_;
};

inline NcclState& state() {
  return NcclState::instance();
}

}  // namespace rueda::test
