// Simulates processes that agree on the survivors, without threads: messages have random delays but
// keep their order between two processes; processes end, freeze and wake up; links break and mend.
//
// Each process behaves like the library: in a world, it sends heartbeats; when the world breaks, it
// agrees with the others and forms the decided world, or stops. A world is formed once all its
// members have arrived. Each member learns this after a delay, or never, and gives up if the
// decision is withdrawn first: so some may have formed a world that others have given up.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/strings.h"
#include "plan/rank_list.h"
#include "plan/survivor_agreement.h"

namespace rueda::test {

class SurvivorSimulator {
 public:
  struct Options {
    int size = 4;
    unsigned seed = 1;
    int min_size = 1;
    double max_delay = 0.02;     // of a message, in units of the heartbeat, which is a second
    double lost_arrivals = 0;    // probability that a process misses that all arrived
    double forming_timeout = 3;  // after which a process gives up
    bool is_one_host = false;    // whoever is frozen and silent is killed
  };
  struct World {
    std::vector<int> members;
    std::uint64_t parent = 0;  // the epoch that broke
    std::set<int> arrived;
    std::set<int> formed;  // the members that have formed it
  };
  enum class State { in_world, agreeing, forming, stopped, ended };
  struct Process {
    State state = State::in_world;
    std::uint64_t epoch = first_epoch;
    std::vector<int> members;
    std::unique_ptr<SurvivorAgreement> agreement;
    std::uint64_t forming = 0;
    std::map<int, Time> heard;
    Time last_run{};
    Time frozen_until{};
    bool was_frozen = false;
    Status error;
    std::vector<std::pair<int, Status>> lost;
    int decisions = 0;
  };

  static constexpr std::uint64_t first_epoch = 4;

  explicit SurvivorSimulator(const Options& options)
      : options_(options), random_(options.seed), processes_(at(options.size)) {
    World& first = worlds_[first_epoch];
    for (int number = 0; number < options.size; ++number) first.members.push_back(number);
    first.formed = {first.members.begin(), first.members.end()};
    for (int number = 0; number < options.size; ++number) {
      Process& process = processes_[at(number)];
      process.members = first.members;
      for (const int other : process.members) process.heard[other] = Time{};
      schedule(Time{} + seconds(real(0.25)), [this, number] { beat(number); });
    }
  }

  [[nodiscard]] int size() const { return options_.size; }
  Process& process(int number) { return processes_[at(number)]; }
  const std::map<std::uint64_t, World>& worlds() const { return worlds_; }
  [[nodiscard]] Time now() const { return now_; }
  [[nodiscard]] int sent() const { return sent_; }
  void reset_sent() { sent_ = 0; }
  double real(double limit) { return std::uniform_real_distribution<>(0, limit)(random_); }
  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }

  // --- Events, after `delay` seconds.

  void end(double delay, int number) {
    after(delay, [this, number] {
      if (process(number).state != State::ended) end_now(number);
    });
  }
  void freeze(double delay, int number, double duration) {
    after(delay, [this, number, duration] {
      process(number).frozen_until = now_ + seconds(duration);
      process(number).was_frozen = true;
    });
  }
  // One direction only, until mended.
  void cut(double delay, int from, int to) {
    after(delay, [this, from, to] { cut_.insert({from, to}); });
  }
  void mend(double delay, int from, int to) {
    after(delay, [this, from, to] {
      cut_.erase({from, to});
      // A new connection to an ended process is refused.
      if (process(from).state == State::ended || process(from).state == State::stopped) {
        tell_end(from, to);
      }
    });
  }
  // The process, if it is in a world, finds it broken.
  void break_world(double delay, int number) {
    after(delay, [this, number] {
      if (process(number).state == State::in_world) begin_to_agree(number);
    });
  }
  void give_up_forming(double delay, int number) {
    after(delay, [this, number] {
      Process& self = process(number);
      if (self.state != State::forming) return;
      self.agreement->not_formed(self.forming, now_);
      look(number);
    });
  }
  void set_lost_arrivals(double share) { options_.lost_arrivals = share; }

  std::function<void(int from, int to, const std::vector<std::byte>& message)> on_send;
  // Called whenever a process begins to form a world.
  std::function<void(int number, const SurvivorAgreement::Decision& decision)> on_decision;

  void run(double duration) {
    const Time end = now_ + seconds(duration);
    while (!events_.empty() && events_.front().time <= end) {
      std::pop_heap(events_.begin(), events_.end());
      const Event event = std::move(events_.back());
      events_.pop_back();
      now_ = event.time;
      event.act();
    }
    now_ = end;
  }

  // --- Requirements.

  // Each world that all its members have formed descends from the previous such world.
  void require_one_world() const {
    std::uint64_t last = first_epoch;
    for (const auto& [epoch, world] : worlds_) {
      if (world.formed.size() != world.members.size() || epoch == first_epoch) continue;
      INFO("world " << epoch << " of " << describe_ranks(world.members) << " after " << last);
      REQUIRE(descends(epoch, last));
      last = epoch;
    }
  }
  // Each process is in a world with all its members, or has stopped with a reason.
  void require_rest() {
    for (int number = 0; number < size(); ++number) {
      const Process& self = process(number);
      if (self.state == State::ended || self.frozen_until > now_) continue;
      CAPTURE(number, static_cast<int>(self.state), self.epoch, self.error.to_string());
      if (self.state == State::stopped) {
        REQUIRE_FALSE(self.error.ok());
        continue;
      }
      REQUIRE(self.state == State::in_world);
      for (const int member : self.members) {
        REQUIRE(process(member).state == State::in_world);
        REQUIRE(process(member).epoch == self.epoch);
      }
    }
  }
  void require_world_of(const std::vector<int>& members) {
    for (const int number : members) {
      Process& self = process(number);
      CAPTURE(number, static_cast<int>(self.state), self.error.to_string());
      REQUIRE(self.state == State::in_world);
      REQUIRE(self.members == members);
    }
  }

 private:
  struct Event {
    Time time;
    std::uint64_t order = 0;  // among events at the same time
    std::function<void()> act;
    bool operator<(const Event& other) const {
      return std::pair(other.time, other.order) < std::pair(time, order);
    }
  };

  static std::size_t at(int number) { return static_cast<std::size_t>(number); }

  void schedule(Time time, std::function<void()> act) {
    events_.push_back({time, ++order_, std::move(act)});
    std::push_heap(events_.begin(), events_.end());
  }
  void after(double delay, std::function<void()> act) {
    schedule(now_ + seconds(delay), std::move(act));
  }

  // Runs `act` on the process once it is not frozen, in order of due time.
  void at_process(int number, const std::function<void()>& act) {
    Process& self = process(number);
    if (self.state == State::ended) return;
    if (self.frozen_until > now_) {
      schedule(self.frozen_until, [this, number, act] { at_process(number, act); });
      return;
    }
    // Like the library's progress thread, which notices that it did not run.
    if (self.state == State::in_world && now_ - self.last_run > seconds(0.75)) {
      stopped_.insert(number);
      for (auto& item : self.heard) item.second = now_;
    }
    self.last_run = now_;
    act();
  }

  // Keeps the order between two processes.
  void send(int from, int to, std::function<void()> act) {
    if (cut_.contains({from, to})) return;
    Time& last = last_arrival_[{from, to}];
    last = std::max(last, now_ + seconds(real(options_.max_delay)));
    schedule(last, [this, from, to, act = std::move(act)] {
      if (!cut_.contains({from, to})) at_process(to, act);
    });
  }

  void end_now(int number) {
    process(number).state = State::ended;
    for (int other = 0; other < size(); ++other) {
      if (other != number) tell_end(number, other);
    }
  }
  void kill_frozen(const std::vector<int>& silent) {
    for (const int number : silent) {
      const Process& self = process(number);
      const bool is_frozen = self.frozen_until > now_ && self.state != State::ended;
      if (options_.is_one_host && is_frozen) end_now(number);
    }
  }
  void tell_end(int number, int other) {
    send(number, other, [this, number, other] {
      Process& self = process(other);
      if (self.state == State::stopped) return;
      if (self.state == State::in_world) {
        if (!rueda::contains(self.members, number)) return;
        begin_to_agree(other);
      }
      self.agreement->lose(number, Loss::ended,
                           Status(ErrorCode::peer_lost, str("rank ", number, " was killed")), now_);
      look(other);
    });
  }

  void beat(int number) {
    if (process(number).state == State::ended) return;
    schedule(now_ + seconds(0.25), [this, number] { beat(number); });
    if (process(number).frozen_until > now_) return;
    at_process(number, [this, number] {
      Process& self = process(number);
      if (self.state != State::in_world) return;
      for (const int other : self.members) {
        if (other == number) continue;
        send(number, other, [this, number, other, epoch = self.epoch] {
          Process& receiver = process(other);
          if (receiver.state == State::in_world && receiver.epoch == epoch) {
            receiver.heard[number] = now_;
          }
        });
      }
      std::vector<int> silent;
      for (const int other : self.members) {
        if (other != number && now_ - self.heard[other] >= seconds(1)) silent.push_back(other);
      }
      if (silent.empty()) return;
      kill_frozen(silent);
      begin_to_agree(number);
      for (const int other : silent) {
        self.agreement->lose(other, Loss::unreachable,
                             Status(ErrorCode::peer_lost, str("rank ", other, " is silent")), now_);
      }
      look(number);
    });
  }

  void begin_to_agree(int number) {
    Process& self = process(number);
    self.state = State::agreeing;
    SurvivorAgreement::Settings settings;
    settings.rank = number;
    settings.members = self.members;
    settings.epoch = self.epoch;
    settings.timeout = seconds(1);
    settings.min_size = options_.min_size;
    settings.was_stopped = stopped_.contains(number);
    settings.is_one_host = options_.is_one_host;
    settings.heard = self.heard;
    self.agreement = std::make_unique<SurvivorAgreement>(settings, now_);
    look(number);
  }

  void receive(int from, int to, const std::vector<std::byte>& message) {
    Process& self = process(to);
    if (self.state == State::stopped) return;
    if (self.state == State::in_world && SurvivorAgreement::epoch_of(message) == self.epoch) {
      begin_to_agree(to);
    }
    self.heard[from] = now_;
    if (!self.agreement) return;  // no world of this process has broken yet
    self.agreement->receive(from, message, now_);
    look(to);
  }

  // Acts on the agreement's messages and decision.
  void look(int number) {
    Process& self = process(number);
    for (SurvivorAgreement::Message& message : self.agreement->take_messages()) {
      ++sent_;
      if (on_send) on_send(number, message.member, message.bytes);
      const int to = message.member;
      send(number, to,
           [this, number, to, bytes = std::move(message.bytes)] { receive(number, to, bytes); });
    }
    if (self.state == State::in_world) return;  // it only answers messages
    const auto& decision = self.agreement->decision();
    const bool still_decided = decision && decision->ok() && (*decision)->epoch == self.forming;
    if (self.state == State::forming && !still_decided) {
      abandon(number);
    }
    if (decision && !decision->ok()) {
      self.error = decision->status();
      self.state = State::stopped;
      schedule(now_ + seconds(0.1), [this, number] {
        if (process(number).state == State::stopped) end_stopped(number);
      });
      return;
    }
    if (decision && self.state == State::agreeing) begin_to_form(number, **decision);
    wake(number);
  }

  // A stopped process exits, so the others see it end; its error remains for the test.
  void end_stopped(int number) {
    for (int other = 0; other < size(); ++other) {
      if (other != number) tell_end(number, other);
    }
  }

  void wake(int number) {
    const auto deadline = process(number).agreement->next_deadline();
    if (!deadline) return;
    Time& planned = wakes_[number];
    if (planned > now_ && planned <= *deadline) return;
    planned = std::max(*deadline, now_) + seconds(real(options_.max_delay) + 1e-6);
    schedule(planned, [this, number] {
      at_process(number, [this, number] {
        Process& self = process(number);
        if (self.state != State::agreeing && self.state != State::forming) return;
        kill_frozen(self.agreement->silent(now_));
        self.agreement->advance(now_);
        look(number);
      });
    });
  }

  // The members that have formed the world or wait for it see this process leave.
  void abandon(int number) {
    Process& self = process(number);
    const std::uint64_t epoch = std::exchange(self.forming, 0);
    self.state = State::agreeing;
    for (const int other : worlds_.at(epoch).members) {
      if (other == number) continue;
      send(number, other, [this, other, epoch] {
        Process& receiver = process(other);
        if (receiver.state == State::in_world && receiver.epoch == epoch) begin_to_agree(other);
      });
    }
  }

  void begin_to_form(int number, const SurvivorAgreement::Decision& decision) {
    Process& self = process(number);
    self.state = State::forming;
    self.forming = decision.epoch;
    self.lost = decision.lost;
    ++self.decisions;
    const auto [found, is_new] = worlds_.try_emplace(decision.epoch);
    if (is_new) {
      found->second.members = decision.members;
      found->second.parent = self.agreement->epoch();
    }
    // An epoch identifies one world.
    REQUIRE(found->second.members == decision.members);
    REQUIRE(rueda::contains(decision.members, number));
    if (on_decision) on_decision(number, decision);
    const auto still = [this, number, epoch = decision.epoch] {
      const Process& process_now = process(number);
      return process_now.state == State::forming && process_now.forming == epoch;
    };
    schedule(now_ + seconds(real(2 * options_.max_delay)), [=, this, epoch = decision.epoch] {
      at_process(number, [=, this] {
        if (still()) arrive(number, epoch);
      });
    });
    schedule(now_ + seconds(options_.forming_timeout + real(0.5)), [=, this] {
      at_process(number, [=, this] {
        if (!still()) return;
        process(number).agreement->not_formed(process(number).forming, now_);
        look(number);
      });
    });
  }

  void arrive(int number, std::uint64_t epoch) {
    World& world = worlds_.at(epoch);
    world.arrived.insert(number);
    if (world.arrived.size() < world.members.size()) return;
    for (const int member : world.members) {
      if (real(1) < options_.lost_arrivals) continue;
      schedule(now_ + seconds(real(2 * options_.max_delay)), [this, member, epoch] {
        at_process(member, [this, member, epoch] { form(member, epoch); });
      });
    }
  }

  void form(int number, std::uint64_t epoch) {
    Process& self = process(number);
    if (self.state != State::forming || self.forming != epoch) return;  // has already given up
    self.agreement->formed(now_);
    self.state = State::in_world;
    self.epoch = epoch;
    self.forming = 0;
    self.members = worlds_.at(epoch).members;
    stopped_.erase(number);
    if (self.agreement->was_stopped()) stopped_.insert(number);
    for (const int other : self.members) self.heard[other] = now_;
    worlds_.at(epoch).formed.insert(number);
    require_one_world();
  }

  [[nodiscard]] bool descends(std::uint64_t epoch, std::uint64_t from) const {
    while (epoch > from) epoch = worlds_.at(epoch).parent;
    return epoch == from;
  }

  Options options_;
  std::mt19937 random_;
  Time now_{};
  std::uint64_t order_ = 0;
  std::vector<Event> events_;  // a heap; std::priority_queue cannot move them out
  std::vector<Process> processes_;
  std::map<std::uint64_t, World> worlds_;
  std::set<std::pair<int, int>> cut_;
  std::map<std::pair<int, int>, Time> last_arrival_;
  std::map<int, Time> wakes_;
  std::set<int> stopped_;
  int sent_ = 0;
};

}  // namespace rueda::test
