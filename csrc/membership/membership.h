// The part of a process that outlives its worlds. When a world has broken, it decides with the
// job's other processes which of them form the next one, and enters that world.
//
// It has its own connections to all other processes (opened when a world breaks), so it does not
// depend on the world's connections, on a gathering rank, or on whatever started the job. Its
// thread sleeps while the world is intact and does everything else, whatever the application is
// doing. The application learns that its world has broken, and asks for the next one when it likes.
//
// Processes are numbered by their ranks in the first world.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/options.h"
#include "membership/member_bootstrap.h"
#include "membership/world.h"
#include "plan/survivor_agreement.h"
#include "transport/connections.h"

namespace rueda {

class Membership {
 public:
  // Describes a world that was entered.
  struct Change {
    std::uint64_t epoch = 0;   // its number, increasing
    std::vector<int> members;  // process of each rank, ascending
    // Processes lost since the first world, and why.
    std::vector<std::pair<int, Status>> lost = {};
  };
  // Starts work in a newly formed world. Collective over its ranks, on the membership's thread; an
  // error unless all succeed. Ends with Bootstrap::begin_last() and a barrier, after which it must
  // not fail.
  using Enter = std::function<Status(World world, Bootstrap& bootstrap, std::uint64_t epoch)>;

  // Collective over all ranks of the first world, whose number is `epoch`.
  static Expected<std::unique_ptr<Membership>> open(Bootstrap& bootstrap, const World& first,
                                                    const Options& options, std::uint64_t epoch,
                                                    Enter enter, Time deadline);
  // To the other processes, this one has ended without saying good-bye.
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // --- Thread-safe

  // The world with this number has broken. No effect for an older one.
  void report(std::uint64_t epoch, const Status& reason);
  // Waits until a world newer than `epoch` was entered. peer_lost if this process must stop: it is
  // in the minority, was expelled, or too few are left. ErrorCode::timeout at the deadline. Throws
  // what an interruption throws.
  Expected<Change> await_newer(std::uint64_t epoch, Time deadline);

  // For a forked child. Async-signal-safe.
  void close_after_fork() { connections_.close_after_fork(); }

 private:
  Membership(Connections::Settings settings, const World& first, const Options& options,
             std::string secret, std::uint64_t epoch, Enter enter);

  void run();
  void work();
  // Processes events until there is a decision, a report, or nothing more to do.
  bool pump(std::optional<Time> until);
  void flush();
  void begin_agreement(Time now);
  void form();
  Status form_world_of(const SurvivorAgreement::Decision& decision);
  // After an attempt in which no member was lost. Finds out if this process is why it failed.
  void pause_after(const Status& formed, const std::vector<int>& members);
  // Whether the decision still stands.
  [[nodiscard]] Status stands(std::uint64_t epoch) const;
  Status wait_for_members(std::uint64_t epoch, Time deadline);
  void conclude(const Expected<Change>& outcome);

  void receive(int process, std::span<const std::byte> message);
  void receive_agreement(int process, std::span<const std::byte> payload);
  void lose(int process, const Status& cause);
  [[nodiscard]] bool has_done_its_part(int process, Loss loss) const;
  // Reports all processes that this one has lost to the agreement.
  void lose_gone(Time now);
  // What is to be seen of processes of this host: those that are writing a core dump have ended;
  // those that get no processor time are waited for longer; those that are stopped are killed.
  void look_at_processes(Time now);
  void look_at_silent(int process, Time now);
  void send(int process, std::uint8_t kind, std::uint64_t epoch,
            std::span<const std::byte> payload);
  [[nodiscard]] bool has_report();
  void lose_reported(Time now);
  [[nodiscard]] Status cause_of(int process, const Status& cause);
  // In the present world, whose member the process is.
  [[nodiscard]] int rank_of(int process) const;
  [[nodiscard]] bool has_certainly_ended(int process, const Status& cause);

  const int process_;
  const Options options_;
  const Topology first_;  // where the processes are
  const KnownCosts costs_;
  const std::string secret_;
  const Enter enter_;
  // For processes of this host: the process ids under which this one sees them.
  const std::map<int, int> identifiers_;
  // Likewise: how to kill them. Empty unless all members are on this host.
  std::map<int, std::function<bool()>> kills_;
  Connections connections_;

  // --- Used only by the thread
  Change present_;
  Time broken_at_{};                              // the current world
  Time next_look_{};                              // at processes that may have crashed
  bool pumping_ = false;                          // waiting for messages
  bool was_stopped_ = false;                      // while it formed the current world
  Duration pause_{};                              // after the last attempt
  std::optional<Time> fails_since_;               // because of this process
  std::unique_ptr<SurvivorAgreement> agreement_;  // since the current world broke
  std::unique_ptr<SurvivorAgreement> last_;       // answers latecomers
  struct Forming {
    std::uint64_t epoch = 0;
    MemberBootstrap* bootstrap = nullptr;
  };
  Forming forming_;
  struct Early {
    int process;
    std::vector<std::byte> message;
  };
  std::map<std::uint64_t, std::vector<Early>> early_;  // for worlds that others are already forming
  // For worlds that this process has not entered yet: the latest view from each process.
  std::map<std::uint64_t, std::map<int, std::vector<std::byte>>> early_views_;
  std::map<int, std::pair<Loss, Status>> gone_;  // by process
  Status obstacle_;                              // why this process cannot continue

  // --- Shared
  std::mutex mutex_;
  std::condition_variable changed_;
  struct Report {
    std::uint64_t epoch = 0;
    Status reason;
  };
  std::optional<Report> reported_;  // an epoch that has broken
  std::optional<Expected<Change>> outcome_;
  Status unformed_;  // why the last attempt failed, if it did
  bool stopping_ = false;

  std::thread thread_;
};

}  // namespace rueda
