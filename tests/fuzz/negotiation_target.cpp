// A negotiator: any rank of seven, and any messages of its neighbours in any order, while it
// submits requests of its own.
#include <deque>
#include <set>
#include <string>

#include "fuzz/script.h"
#include "plan/negotiator.h"

namespace rueda::fuzz::negotiation_target {

namespace {

constexpr int ranks = 7;
constexpr std::array<int, 3> places{0, 1, 5};  // the root, one in between, a leaf

enum class Step { submit, submit_group, receive, flush, wait, amend, join, load, leave };
constexpr int steps = 9;

NegotiatorOptions options_of(int rank) {
  NegotiatorOptions options;
  options.rank = rank;
  options.members = {0, 1, 2, 3, 4, 5, 6};
  options.fanout = 2;
  options.cache_capacity = 3;
  options.stall_warning = seconds(4);
  options.stall_error = [] { return seconds(9); };
  return options;
}

Request request_of(int choice, int rank) {
  Request request;
  request.name = "tensor " + std::to_string(choice);
  request.shape = {2, 3};
  switch (choice) {
    case 1:
      request.collective = Collective::allgather;
      request.shape = {rank % 3, 2};
      break;
    case 2:
      request.collective = Collective::broadcast;
      request.root = 3;
      break;
    case 3: request.priority = 7; break;
    case 4: request.shape = {rank == 3 ? 1 : 2}; break;
    case 5:
      request.collective = Collective::add_process_set;
      request.set_ranks = {1, 3};
      break;
    case 6: request.error = Status(ErrorCode::invalid_argument, "cannot take part"); break;
    default: break;
  }
  return request;
}
constexpr int requests = 8;

// One rank, which submits a name when it is not pending, as its coordinator sees to.
class Rank {
 public:
  explicit Rank(int rank) : rank_(rank), negotiator_(options_of(rank)) {}

  void submit(int choice) { submit({request_of(choice, rank_)}); }
  void submit_group(int choice) {
    Request first = request_of(choice, rank_);
    Request second = request_of((choice + 1) % requests, rank_);
    first.group = second.group = "group " + std::to_string(choice);
    first.group_size = second.group_size = 2;
    submit({std::move(first), std::move(second)});
  }
  void amend(int choice) {
    negotiator_.amend(request_of(choice, rank_).name,
                      Status(ErrorCode::duplicate_name, "submitted twice"));
  }
  void join() {
    if (!std::exchange(joined_, true)) negotiator_.join();
  }
  void wait() { now_ += seconds(6); }
  std::vector<Negotiator::Outgoing> flush() {
    negotiator_.flush(now_);
    for (const ResponseList& list : negotiator_.take_responses()) {
      for (const Response& response : list) apply(response);
    }
    return negotiator_.take_outgoing();
  }
  void receive(int from, std::span<const std::byte> message) {
    negotiator_.receive(from, message, now_);
  }
  Negotiator& negotiator() { return negotiator_; }

 private:
  void submit(std::vector<Request> all) {
    for (const Request& request : all) {
      if (pending_.contains(request.name) || joined_) return;
    }
    std::set<std::string> names;
    for (const Request& request : all) names.insert(request.name);
    if (negotiator_.submit_group(std::move(all), now_).ok()) pending_.merge(names);
  }

  void apply(const Response& response) {
    if (response.kind == ResponseKind::joined) joined_ = false;
    if (response.kind == ResponseKind::execute) {
      require(validate(response.request, ranks).ok());
      pending_.erase(response.request.name);
    }
    // That of a group answers others, too, which stay pending here: only less is submitted.
    if (response.kind == ResponseKind::error) pending_.erase(response.request.name);
  }

  const int rank_;
  Negotiator negotiator_;
  Time now_{};
  std::set<std::string> pending_;
  bool joined_ = false;
};

void run(std::span<const std::byte> bytes) {
  Script script(bytes);
  Rank rank(places[script.byte() % places.size()]);
  while (!script.is_over()) {
    switch (static_cast<Step>(script.below(steps))) {
      case Step::submit: rank.submit(script.below(requests)); break;
      case Step::submit_group: rank.submit_group(script.below(requests)); break;
      case Step::receive: {
        const int from = script.below(ranks);
        rank.receive(from, script.block());
        break;
      }
      case Step::flush: static_cast<void>(rank.flush()); break;
      case Step::wait: rank.wait(); break;
      case Step::amend: rank.amend(script.below(requests)); break;
      case Step::join: rank.join(); break;
      case Step::load: rank.negotiator().set_load({.is_busy = script.byte() % 2 == 1}); break;
      case Step::leave: rank.negotiator().leave(); break;
    }
  }
  static_cast<void>(rank.flush());
}

// All ranks together, and the script of what each does and hears.
class World {
 public:
  World() : scripts_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) ranks_.emplace_back(rank);
    for (std::size_t i = 0; i < places.size(); ++i) {
      scripts_[static_cast<std::size_t>(places[i])].byte(static_cast<int>(i));
    }
  }

  void does(int rank, Step step, int choice) {
    script(rank).byte(static_cast<int>(step));
    Rank& one = ranks_[static_cast<std::size_t>(rank)];
    if (step != Step::join && step != Step::leave && step != Step::wait) script(rank).byte(choice);
    switch (step) {
      case Step::submit: return one.submit(choice);
      case Step::submit_group: return one.submit_group(choice);
      case Step::amend: return one.amend(choice);
      case Step::wait: return one.wait();
      case Step::join: return one.join();
      default: (void)one.negotiator().leave(); return;
    }
  }
  void all_do(Step step, int choice = 0) {
    for (int rank = 0; rank < ranks; ++rank) does(rank, step, choice);
    settle();
  }
  void settle() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < ranks; ++rank) {
        script(rank).byte(static_cast<int>(Step::flush));
        for (const auto& [to, message] : ranks_[static_cast<std::size_t>(rank)].flush()) {
          moved = true;
          script(to).byte(static_cast<int>(Step::receive)).byte(rank).block(message);
          ranks_[static_cast<std::size_t>(to)].receive(rank, message);
        }
      }
    }
  }
  void add_scripts_to(std::vector<Bytes>& seeds) {
    for (const int place : places) seeds.push_back(script(place).take());
  }

 private:
  ScriptWriter& script(int rank) { return scripts_[static_cast<std::size_t>(rank)]; }

  std::deque<Rank> ranks_;
  std::vector<ScriptWriter> scripts_;
};

std::vector<Bytes> seeds() {
  std::vector<Bytes> seeds;
  World usual;
  for (const int choice : {0, 1, 2, 3, 0, 1}) usual.all_do(Step::submit, choice);
  usual.all_do(Step::submit_group, 0);
  usual.add_scripts_to(seeds);
  World wrong;
  for (const int choice : {4, 6, 5}) wrong.all_do(Step::submit, choice);
  wrong.does(5, Step::submit, 0);
  wrong.does(5, Step::amend, 0);
  wrong.settle();
  for (int i = 0; i < 3; ++i) wrong.all_do(Step::wait);
  wrong.add_scripts_to(seeds);
  World ending;
  for (const int rank : {1, 3, 5}) ending.does(rank, Step::join, 0);
  for (const int rank : {0, 2, 4, 6}) ending.does(rank, Step::submit, 0);
  ending.settle();
  for (const int rank : {0, 2, 4, 6}) ending.does(rank, Step::join, 0);
  ending.settle();
  ending.does(5, Step::leave, 0);
  ending.settle();
  ending.add_scripts_to(seeds);
  return seeds;
}

}  // namespace
}  // namespace rueda::fuzz::negotiation_target

namespace rueda::fuzz {

const Target negotiation{"negotiation", negotiation_target::run, negotiation_target::seeds};

}  // namespace rueda::fuzz
