// Messages from one rank to another: what a rank of two hears while it sends and receives.
#include <list>
#include <memory>

#include "coordinator/point_to_point.h"
#include "fuzz/script.h"
#include "transport/inproc.h"

namespace rueda::fuzz::messages_target {

namespace {

enum class Step { receive, hear, send, step, leave, lose };
constexpr int steps = 6;
constexpr int sets = 3;

// Rank 0 of two, which share no memory.
class Rank {
 public:
  Rank()
      : transport_(hub_.make_transport(0)),
        other_transport_(hub_.make_transport(1)),
        control_(hub_.make_control_lane(0)),
        other_control_(hub_.make_control_lane(1)),
        departures_(*control_),
        messages_(host_, *transport_, departures_,
                  [this](int peer, std::span<const std::byte> message) {
                    require(peer == 0 || peer == 1);
                    said_.emplace_back(message.begin(), message.end());
                  }) {}
  ~Rank() {
    transport_->abort(over());
    messages_.fail_all(over());
    static_cast<void>(control_->close(Clock::now()));
    static_cast<void>(other_control_->close(Clock::now()));
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void submit(bool is_send, int set, int tag, int count, int peer) {
    MessageRequest request;
    request.is_send = is_send;
    request.set_id = set;
    request.peer = peer;
    request.tag = tag;
    request.count = count;
    buffers_.emplace_back(request.bytes());
    request.data = buffers_.back().data();
    request.handle = OpenHandle(std::make_shared<HandleState>());
    messages_.submit(std::move(request));
  }
  void hear(std::span<const std::byte> message) { messages_.receive(1, message); }
  void step() {
    while (messages_.step(Clock::now())) {
    }
    transport_->progress();
  }
  void leave(int set) { messages_.leave(set); }
  void lose() {
    transport_->fail(1, over());
    messages_.lose(1, over());
  }
  std::vector<Bytes> take_said() { return std::exchange(said_, {}); }

 private:
  static Status over() { return {ErrorCode::peer_lost, "over", 1}; }

  InprocHub hub_{2};
  HostGroup host_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Transport> other_transport_;
  std::unique_ptr<ControlLane> control_;
  std::unique_ptr<ControlLane> other_control_;
  std::list<Bytes> buffers_;
  std::vector<Bytes> said_;
  Departures departures_;
  PointToPoint messages_;
};

void run(std::span<const std::byte> bytes) {
  Script script(bytes);
  Rank rank;
  while (!script.is_over()) {
    switch (static_cast<Step>(script.below(steps))) {
      case Step::receive: {
        const int set = script.below(sets);
        const int tag = script.below(4);
        const int count = script.byte() * 8;
        rank.submit(false, set, tag, count, script.below(2) == 0 ? -1 : 1);
        break;
      }
      case Step::hear: rank.hear(script.block()); break;
      case Step::send: {
        const int set = script.below(sets);
        const int tag = script.below(4);
        rank.submit(true, set, tag, script.byte() * 8, 1);
        break;
      }
      case Step::step: rank.step(); break;
      case Step::leave: rank.leave(script.below(sets)); break;
      case Step::lose: rank.lose(); break;
    }
  }
  rank.step();
}

// What a sender says, heard by a receiver; and what a receiver says to a sender.
std::vector<Bytes> seeds() {
  std::vector<Bytes> seeds;
  for (const int count : {0, 3, 200}) {
    Rank sender;
    sender.submit(true, 1, 2, count * 8, 1);
    for (const Bytes& offer : sender.take_said()) {
      ScriptWriter early;
      early.byte(static_cast<int>(Step::hear)).block(offer);
      early.byte(static_cast<int>(Step::receive)).byte(1).byte(2).byte(count).byte(0);
      seeds.push_back(early.byte(static_cast<int>(Step::step)).take());
      Rank receiver;
      receiver.submit(false, 1, 2, count * 8, 1);
      receiver.hear(offer);
      for (const Bytes& answer : receiver.take_said()) {
        ScriptWriter asked;
        asked.byte(static_cast<int>(Step::send)).byte(1).byte(2).byte(count);
        asked.byte(static_cast<int>(Step::hear)).block(answer);
        seeds.push_back(asked.byte(static_cast<int>(Step::step)).take());
      }
      Rank gone;
      gone.leave(1);
      gone.hear(offer);
      for (const Bytes& refusal : gone.take_said()) {
        ScriptWriter refused;
        refused.byte(static_cast<int>(Step::send)).byte(1).byte(2).byte(count);
        seeds.push_back(refused.byte(static_cast<int>(Step::hear)).block(refusal).take());
      }
    }
  }
  return seeds;
}

}  // namespace
}  // namespace rueda::fuzz::messages_target

namespace rueda::fuzz {

const Target messages{"messages", messages_target::run, messages_target::seeds};

}  // namespace rueda::fuzz
