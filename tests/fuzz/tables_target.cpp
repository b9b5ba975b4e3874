// Tables: what a rank of two hears, as the owner of parts and as one who asks, while it asks.
#include <array>
#include <list>
#include <memory>

#include "coordinator/table_client.h"
#include "coordinator/table_owner.h"
#include "fuzz/script.h"
#include "server/update_rule.h"
#include "transport/inproc.h"

namespace rueda::fuzz::tables_target {

namespace {

enum class Step { request, answer, ask, close, open, step, lose };
constexpr int steps = 7;
constexpr std::uint64_t tables = 3;            // dense and replicated; in ring order; of rows
constexpr std::uint64_t most_bytes = 1 << 20;  // that a peer claims to send: it has them, otherwise

// Rank 0 of two, which share no memory.
class Rank {
 public:
  Rank()
      : transport_(hub_.make_transport(0)),
        other_transport_(hub_.make_transport(1)),
        control_(hub_.make_control_lane(0)),
        other_control_(hub_.make_control_lane(1)),
        departures_(*control_),
        messages_(host_, *transport_, departures_, [](int, std::span<const std::byte>) {}),
        client_(
            messages_,
            [this](int peer, std::span<const std::byte> message) {
              require(peer == 0 || peer == 1);
              said_.emplace_back(message.begin(), message.end());
            },
            [](int) { return false; }, {seconds(10), seconds(20)}, metrics_),
        owner_(
            messages_, client_,
            [this](int peer, std::span<const std::byte> message) {
              require(peer == 0 || peer == 1);
              require(decode_table_answer(message).has_value());
              said_.emplace_back(message.begin(), message.end());
            },
            [](int) { return false; }, {seconds(10), seconds(20)}, metrics_) {
    for (std::uint64_t table = 0; table < tables; ++table) open(table);
  }
  ~Rank() {
    transport_->abort(over());
    messages_.fail_all(over());
    owner_.fail_all();
    client_.fail_all(over());
    require(owner_.staged() == 0);
    static_cast<void>(control_->close(Clock::now()));
    static_cast<void>(other_control_->close(Clock::now()));
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void open(std::uint64_t number) {
    owner_.close(number);
    HeldTable held;
    held.number = number;
    held.name = "table";
    held.ranks = {0, 1};
    held.in_ring_order = number == 1;
    const AppliedRule sum{find_update_rule("sum"), {}};
    if (number == 2) {
      held.own = std::make_shared<RowShard>(3, InitialRows{1, 0.5F, 2}, sum);
    } else {
      held.own = std::make_shared<DenseShard>(0, 2000, sum);
      held.own_count = 2000;
      if (number == 0) held.replica = std::make_shared<DenseShard>(2000, 4000, sum);
    }
    held.use = std::make_shared<TableUse>(number, held.name, 2);
    uses_.at(number) = held.use;
    owner_.open(std::move(held));
  }
  void close(std::uint64_t number) { owner_.close(number); }

  void request(int peer, std::span<const std::byte> message) {
    const auto decoded = decode_table_request(message);
    if (decoded && decoded->message.payload_bytes > most_bytes) return;
    if (decoded && decoded->message.count > 100'000) return;
    owner_.receive(peer, message, now_);
  }
  void answer(int peer, std::span<const std::byte> message) {
    const auto decoded = decode_table_answer(message);
    if (decoded && decoded->message.payload_bytes > most_bytes) return;
    client_.receive(peer, message);
  }

  void ask(std::uint64_t number, int verb, int count) {
    auto operation = std::make_shared<TableOperation>();
    operation->use = uses_.at(number);
    operation->request.verb = static_cast<TableVerb>(verb);
    TableOperation::Part& part = operation->parts.emplace_back();
    part.owner = 1;
    part.index = 1;
    part.begin = 2000;
    part.count = count * 8;
    buffers_.emplace_back(static_cast<std::size_t>(part.count) * sizeof(float));
    if (changes_values(operation->request.verb)) {
      part.payload = buffers_.back().data();
      part.payload_bytes = buffers_.back().size();
    }
    part.target = reinterpret_cast<float*>(buffers_.back().data());
    if (operation->request.verb == TableVerb::call) {
      operation->results = std::make_shared<std::vector<Bytes>>(2);
    }
    operation->handle = OpenHandle(std::make_shared<HandleState>());
    client_.submit(std::move(operation));
  }

  void step() {
    now_ += seconds(1);
    for (int i = 0; i < 4; ++i) {
      messages_.step(now_);
      owner_.step(now_);
      client_.step(now_);
    }
  }
  void lose() {
    messages_.lose(1, over());
    owner_.lose(1);
    client_.lose(1, over());
  }
  std::vector<Bytes> take_said() { return std::exchange(said_, {}); }

 private:
  static Status over() { return {ErrorCode::peer_lost, "over", 1}; }

  InprocHub hub_{2};
  HostGroup host_;
  Metrics metrics_;
  Time now_{};
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Transport> other_transport_;
  std::unique_ptr<ControlLane> control_;
  std::unique_ptr<ControlLane> other_control_;
  std::list<Bytes> buffers_;
  std::vector<Bytes> said_;
  std::array<std::shared_ptr<TableUse>, tables> uses_;
  Departures departures_;
  PointToPoint messages_;
  TableClient client_;
  TableOwner owner_;
};

void run(std::span<const std::byte> bytes) {
  Script script(bytes);
  Rank rank;
  while (!script.is_over()) {
    switch (static_cast<Step>(script.below(steps))) {
      case Step::request: {
        const int peer = script.below(2);
        rank.request(peer, script.block());
        break;
      }
      case Step::answer: rank.answer(1, script.block()); break;
      case Step::ask: {
        const auto table = static_cast<std::uint64_t>(script.below(tables));
        const int verb = script.below(table_verbs);
        rank.ask(table, verb, script.byte());
        break;
      }
      case Step::close: rank.close(static_cast<std::uint64_t>(script.below(tables))); break;
      case Step::open: rank.open(static_cast<std::uint64_t>(script.below(tables))); break;
      case Step::step: rank.step(); break;
      case Step::lose: rank.lose(); break;
    }
  }
  rank.step();
}

// Requests of every kind to every table, and answers to what it asks.
std::vector<Bytes> seeds() {
  std::vector<Bytes> seeds;
  for (std::uint64_t table = 0; table < tables; ++table) {
    for (int verb = 0; verb < table_verbs; ++verb) {
      ScriptWriter writer;
      for (int peer = 1; peer >= 0; --peer) {
        TableRequest request;
        request.table = table;
        request.number = static_cast<std::uint64_t>(peer);
        request.verb = static_cast<TableVerb>(verb);
        const bool is_step = table == 1 && request.verb == TableVerb::add;
        request.count = is_step ? 2000 : 4;
        request.ticks = request.verb == TableVerb::add;
        request.min_clock = request.verb == TableVerb::get ? 1 : 0;
        request.function = request.verb == TableVerb::call ? "sum" : "";
        std::size_t bytes = table == 2 ? 4 * sizeof(std::int64_t) : 0;
        if (changes_values(request.verb)) {
          bytes += static_cast<std::size_t>(request.count) * (table == 2 ? 3 : 1) * sizeof(float);
        }
        if (!changes_values(request.verb) && request.verb != TableVerb::get) bytes = 0;
        const Bytes payload(bytes, std::byte{1});
        request.payload_bytes = bytes;
        writer.byte(static_cast<int>(Step::request)).byte(peer);
        writer.block(encode(request, payload)).byte(static_cast<int>(Step::step));
      }
      seeds.push_back(writer.take());
      TableAnswer answer;
      const Bytes values(verb == 0 ? 64 : 0, std::byte{2});
      answer.payload_bytes = values.size();
      ScriptWriter asked;
      asked.byte(static_cast<int>(Step::ask)).byte(static_cast<int>(table)).byte(verb).byte(2);
      asked.byte(static_cast<int>(Step::answer)).block(encode(answer, values));
      seeds.push_back(asked.byte(static_cast<int>(Step::step)).take());
    }
  }
  return seeds;
}

}  // namespace
}  // namespace rueda::fuzz::tables_target

namespace rueda::fuzz {

const Target table_requests{"tables", tables_target::run, tables_target::seeds};

}  // namespace rueda::fuzz
