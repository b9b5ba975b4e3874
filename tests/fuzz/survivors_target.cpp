// A member of a broken epoch, and any messages of the others in any order.
#include <algorithm>

#include "fuzz/script.h"
#include "plan/survivor_agreement.h"

namespace rueda::fuzz::survivors_target {

namespace {

const std::vector<int> members{0, 1, 3, 4};

enum class Step { receive, lose, excuse, advance, not_formed, formed };
constexpr int steps = 6;

SurvivorAgreement::Settings settings_of(int member) {
  SurvivorAgreement::Settings settings;
  settings.rank = member;
  settings.members = members;
  settings.epoch = 3;
  settings.timeout = seconds(1);
  return settings;
}

// Decisions are of the members, this one among them, and of a later epoch.
void check(const SurvivorAgreement& agreement, int member) {
  const auto& decision = agreement.decision();
  if (!decision || !decision->ok()) return;
  const auto& chosen = decision->value().members;
  require(std::includes(members.begin(), members.end(), chosen.begin(), chosen.end()));
  require(std::binary_search(chosen.begin(), chosen.end(), member));
  require(decision->value().epoch > 3);
}

void run(std::span<const std::byte> bytes) {
  Script script(bytes);
  Time now{};
  const int own = members[script.byte() % members.size()];
  SurvivorAgreement agreement(settings_of(own), now);
  const auto other = [&] {
    const auto index = static_cast<std::size_t>(script.byte());
    const int chosen = members[index % members.size()];
    return chosen == own ? members[(index + 1) % members.size()] : chosen;
  };
  while (!script.is_over()) {
    switch (static_cast<Step>(script.below(steps))) {
      case Step::receive: {
        const int from = other();
        agreement.receive(from, script.block(), now);
        break;
      }
      case Step::lose: {
        const int lost = other();
        agreement.lose(lost, script.byte() % 2 == 0 ? Loss::ended : Loss::unreachable,
                       Status(ErrorCode::peer_lost, "gone", lost), now);
        break;
      }
      case Step::excuse:
        for (const int member : agreement.silent(now)) agreement.excuse(member, now);
        break;
      case Step::advance:
        now += seconds(script.byte() / 200.0);
        agreement.advance(now);
        break;
      case Step::not_formed: agreement.not_formed(agreement.epoch() + script.byte(), now); break;
      case Step::formed:
        if (agreement.decision() && agreement.decision()->ok()) agreement.formed(now);
        break;
    }
    check(agreement, own);
    static_cast<void>(agreement.take_messages());
  }
}

// The others of one that has ended agree; a script for each of them.
std::vector<Bytes> seeds() {
  const int lost = 4;
  Time now{};
  std::vector<int> left{0, 1, 3};
  std::vector<SurvivorAgreement> all;
  std::vector<ScriptWriter> scripts(left.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    all.emplace_back(settings_of(left[i]), now);
    scripts[i].byte(static_cast<int>(i)).byte(static_cast<int>(Step::lose)).byte(3).byte(0);
    all[i].lose(lost, Loss::ended, Status(ErrorCode::peer_lost, "gone", lost), now);
  }
  for (int round = 0; round < 4; ++round) {
    now += seconds(0.3);
    for (std::size_t i = 0; i < left.size(); ++i) {
      scripts[i].byte(static_cast<int>(Step::advance)).byte(60);
      all[i].advance(now);
      for (const auto& [to, message] : all[i].take_messages()) {
        const auto found = std::find(left.begin(), left.end(), to);
        if (found == left.end()) continue;
        const auto place = static_cast<std::size_t>(found - left.begin());
        scripts[place].byte(static_cast<int>(Step::receive)).byte(static_cast<int>(i));
        scripts[place].block(message);
        all[place].receive(left[i], message, now);
      }
    }
  }
  std::vector<Bytes> seeds;
  for (ScriptWriter& script : scripts) seeds.push_back(script.take());
  const EpochHasGoneOn later{5, {1, 3}, Status(ErrorCode::peer_lost, "it was silent", 0)};
  seeds.push_back(ScriptWriter()
                      .byte(0)
                      .byte(static_cast<int>(Step::receive))
                      .byte(1)
                      .block(encode(SurvivorMessage(later)))
                      .take());
  return seeds;
}

}  // namespace
}  // namespace rueda::fuzz::survivors_target

namespace rueda::fuzz {

const Target survivors{"survivors", survivors_target::run, survivors_target::seeds};

}  // namespace rueda::fuzz
