// The hosts' agreement on rounds of plans: any host of seven, and any messages in any order.
#include <map>

#include "fuzz/script.h"
#include "plan/round_agreement.h"

namespace rueda::fuzz::rounds_target {

namespace {

constexpr int hosts = 7;
constexpr int fanout = 2;
constexpr std::array<int, 3> places{0, 1, 5};  // the root, one in between, a leaf

// So many bytes go along with a plan's rounds.
std::size_t length_of(std::uint64_t plan) {
  return plan % 3 == 0 ? 0 : 8 * plan;
}

RoundAgreement::Bytes combine(std::uint64_t plan, const std::vector<RoundAgreement::Bytes>& sent) {
  for (const auto& bytes : sent) require(bytes.size() == length_of(plan));
  return RoundAgreement::Bytes(length_of(plan), std::byte{1});
}

RoundAgreement host_of(int host) {
  return {host, hosts,
          [](std::uint64_t plan, const std::vector<RoundAgreement::Bytes>& sent, bool) {
            return combine(plan, sent);
          },
          fanout};
}

enum class Step { ready, cancel, receive, flush, load, end };
constexpr int steps = 6;

// A host's own part, kept as its users keep it.
class Host {
 public:
  explicit Host(int host) : agreement_(host_of(host)) {}

  void ready(std::uint64_t plan) {
    Known& known = plans_[plan];
    if (known.is_ready || known.is_cancelled || agreement_.has_ended()) return;
    known.is_ready = true;
    agreement_.ready(plan, RoundAgreement::Bytes(length_of(plan), std::byte{2}));
  }
  void cancel(std::uint64_t plan) {
    if (std::exchange(plans_[plan].is_cancelled, true) || agreement_.has_ended()) return;
    agreement_.cancel(plan);
  }
  [[nodiscard]] bool receive(int from, std::span<const std::byte> message) {
    const bool is_sound = agreement_.receive(from, message);
    take();
    return is_sound;
  }
  std::vector<RoundAgreement::Outgoing> flush() {
    agreement_.flush();
    take();
    return agreement_.take_outgoing();
  }
  RoundAgreement& agreement() { return agreement_; }

 private:
  struct Known {
    bool is_ready = false;
    bool is_cancelled = false;
  };

  void take() {
    for (const auto& decision : agreement_.take_decisions()) {
      Known& known = plans_[decision.plan];
      // Or what came along would go where there is no room for it.
      require(decision.result.empty() ||
              (known.is_ready && decision.result.size() == length_of(decision.plan)));
      known.is_ready = false;
      if (!decision.goes) known.is_cancelled = true;
    }
  }

  RoundAgreement agreement_;
  std::map<std::uint64_t, Known> plans_;
};

void run(std::span<const std::byte> bytes) {
  Script script(bytes);
  Host host(places[script.byte() % places.size()]);
  while (!script.is_over()) {
    switch (static_cast<Step>(script.below(steps))) {
      case Step::ready: host.ready(script.byte() % 8); break;
      case Step::cancel: host.cancel(script.byte() % 8); break;
      case Step::receive: {
        const int from = script.below(hosts);
        if (!host.receive(from, script.block())) return;  // the set ends there
        break;
      }
      case Step::flush: static_cast<void>(host.flush()); break;
      case Step::load: host.agreement().set_load({.is_busy = script.byte() % 2 == 1}); break;
      case Step::end: host.agreement().end(); break;
    }
  }
}

// What the hosts in `places` say and hear while all do the same thing a few times.
std::vector<Bytes> seeds() {
  std::vector<Host> all;
  std::vector<ScriptWriter> scripts(hosts);
  all.reserve(hosts);
  for (int host = 0; host < hosts; ++host) all.emplace_back(host);
  for (std::size_t i = 0; i < places.size(); ++i) {
    scripts[static_cast<std::size_t>(places[i])].byte(static_cast<int>(i));
  }
  const auto at = [](int host) { return static_cast<std::size_t>(host); };
  const auto settle = [&] {
    for (bool moved = true; moved;) {
      moved = false;
      for (int host = 0; host < hosts; ++host) {
        scripts[at(host)].byte(static_cast<int>(Step::flush));
        for (const auto& [to, message] : all[at(host)].flush()) {
          moved = true;
          scripts[at(to)].byte(static_cast<int>(Step::receive)).byte(host).block(message);
          require(all[at(to)].receive(host, message));
        }
      }
    }
  };
  const auto everywhere = [&](Step step, int plan) {
    for (int host = 0; host < hosts; ++host) {
      scripts[at(host)].byte(static_cast<int>(step)).byte(plan);
      step == Step::ready ? all[at(host)].ready(static_cast<std::uint64_t>(plan))
                          : all[at(host)].cancel(static_cast<std::uint64_t>(plan));
    }
  };
  for (const int plan : {1, 3, 5}) everywhere(Step::ready, plan);
  settle();
  everywhere(Step::ready, 1);
  scripts[5].byte(static_cast<int>(Step::cancel)).byte(1);
  all[5].cancel(1);
  settle();
  everywhere(Step::ready, 5);
  settle();
  for (int host = 0; host < hosts; ++host) {
    scripts[at(host)].byte(static_cast<int>(Step::end));
    all[at(host)].agreement().end();
  }
  settle();
  std::vector<Bytes> seeds;
  for (const int place : places) seeds.push_back(scripts[at(place)].take());
  return seeds;
}

}  // namespace
}  // namespace rueda::fuzz::rounds_target

namespace rueda::fuzz {

const Target rounds{"rounds", rounds_target::run, rounds_target::seeds};

}  // namespace rueda::fuzz
