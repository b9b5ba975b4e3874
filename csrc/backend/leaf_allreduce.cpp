#include "backend/leaf_allreduce.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "backend/packed_operation.h"

namespace rueda {

namespace {

// Number of rounds in flight: one is combined while others are transferred.
constexpr std::size_t max_rounds = 4;
// Kinds of messages of an operation; each kind is ordered separately.
constexpr std::uint64_t contributions = 0;
constexpr std::uint64_t results = 1;

std::int64_t elements_of(const std::vector<Piece>& pieces) {
  std::int64_t count = 0;
  for (const Piece& piece : pieces) count += piece.count;
  return count;
}

}  // namespace

LeafAllreduce::LeafAllreduce(const Lane& lane, const Reduction& reduction,
                             std::vector<Piece> pieces)
    : lane_(lane),
      plan_(reduction.leaves),
      pieces_(std::move(pieces)),
      element_(size_of(reduction.dtype)),
      tree_(combination_of(reduction), plan_->merges),
      chunk_(std::max<std::int64_t>(1, lane.chunk_bytes / static_cast<std::int64_t>(element_))),
      count_(elements_of(pieces_)),
      results_taken_(static_cast<std::size_t>(lane.size()), 0) {
  const std::int64_t most = (count_ + lane_.size() - 1) / lane_.size();
  chunks_ = (most + chunk_ - 1) / chunk_;
  done_ = chunks_ == 0;
}

// If the batch does not divide evenly, the first ranks own one more element each.
LeafAllreduce::Range LeafAllreduce::chunk_of(int owner, std::int64_t number) const {
  const std::int64_t share = count_ / lane_.size();
  const std::int64_t rest = count_ % lane_.size();
  const std::int64_t owned = share + (owner < rest ? 1 : 0);
  const std::int64_t before = owner * share + std::min<std::int64_t>(owner, rest);
  const std::int64_t skipped = std::min(owned, number * chunk_);
  return {before + skipped, std::min(chunk_, owned - skipped)};
}

std::vector<LeafAllreduce::Run> LeafAllreduce::runs_of(Range range) const {
  std::vector<Run> runs;
  for (const Piece& piece : pieces_) {
    if (range.count == 0) break;
    if (range.first < piece.count) {
      const std::int64_t count = std::min(range.count, piece.count - range.first);
      runs.push_back({&piece, range.first, count});
      range = {range.first + count, range.count - count};
    }
    range.first -= piece.count;
  }
  return runs;
}

bool LeafAllreduce::advance() {
  if (done_) return false;
  bool moved = false;
  while (begun_ < chunks_ && rounds_.size() < max_rounds) {
    begin_round();
    moved = true;
  }
  for (Round& round : rounds_) {
    if (advance(round)) {
      moved = true;
      break;
    }
  }
  while (!rounds_.empty() && is_over(rounds_.front())) {
    rounds_.pop_front();
    moved = true;
  }
  if (begun_ == chunks_ && rounds_.empty()) done_ = true;
  if (!status_.ok()) done_ = true;
  return moved || done_;
}

void LeafAllreduce::begin_round() {
  Round& round = rounds_.emplace_back();
  round.number = begun_++;
  const Range own = chunk_of(lane_.rank, round.number);
  for (int distance = 1; distance < lane_.size(); ++distance) {
    Exchange& exchange = round.exchanges.emplace_back();
    exchange.rank = (lane_.rank + distance) % lane_.size();
    take_contribution(exchange, own);
    send_contribution(exchange, chunk_of(exchange.rank, round.number));
  }
}

void LeafAllreduce::take_contribution(Exchange& exchange, Range range) {
  const int partials = partials_of(exchange.rank);
  if (range.count == 0 || partials == 0) return;
  const std::size_t bytes = bytes_of(range.count) * static_cast<std::size_t>(partials);
  exchange.contribution = allocate_aligned(bytes);
  exchange.contribution_taken =
      take(exchange.rank, contributions, {MutableBytes(exchange.contribution.get(), bytes)});
}

void LeafAllreduce::send_contribution(Exchange& exchange, Range range) {
  std::vector<ConstBytes> spans;
  const std::vector<Run> runs = runs_of(range);
  for (int number = 0; number < partials_of(lane_.rank); ++number) {
    for (const Run& run : runs) {
      const std::byte* const partial = run.piece->input + bytes_of(number * run.piece->count);
      spans.emplace_back(partial + bytes_of(run.first), bytes_of(run.count));
    }
  }
  if (!spans.empty()) exchange.contribution_sent = send(exchange.rank, contributions, spans);
}

// The output may be the same memory as the first partial sum, which must have been sent first. In
// round order, since a later message may be sent sooner.
bool LeafAllreduce::take_result(Exchange& exchange, std::int64_t number) {
  std::int64_t& taken = results_taken_[static_cast<std::size_t>(exchange.rank)];
  if (taken != number || !is_over(exchange.contribution_sent)) return false;
  ++taken;
  const Range range = chunk_of(exchange.rank, number);
  if (range.count == 0) return true;
  std::vector<MutableBytes> spans;
  for (const Run& run : runs_of(range)) {
    spans.emplace_back(run.piece->output + bytes_of(run.first), bytes_of(run.count));
  }
  exchange.result_taken = take(exchange.rank, results, spans);
  return true;
}

bool LeafAllreduce::advance(Round& round) {
  bool moved = false;
  for (Exchange& exchange : round.exchanges) {
    moved = take_result(exchange, round.number) || moved;
  }
  if (round.is_combined || !may_combine(round)) return moved;
  for (Exchange& exchange : round.exchanges) {
    if (!is_over(exchange.contribution_taken)) return moved;
  }
  combine(round);
  return true;
}

// One after the other, so that results are sent in order.
bool LeafAllreduce::may_combine(const Round& round) const {
  const Round& first = rounds_.front();
  const auto before = static_cast<std::size_t>(round.number - first.number);
  return before == 0 || rounds_[before - 1].is_combined;
}

void LeafAllreduce::combine(Round& round) {
  round.is_combined = true;
  const std::vector<Run> runs = runs_of(chunk_of(lane_.rank, round.number));
  std::vector<const std::byte*> inputs(plan_->sources.size());
  std::int64_t before = 0;
  for (const Run& run : runs) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = input_of(round, plan_->sources[i], run, before);
    }
    std::byte* const output = run.piece->output + bytes_of(run.first);
    tree_({&output, 1}, inputs, run.count, Stores::cached);
    before += run.count;
  }
  lane_.counters->bytes_reduced.add(static_cast<std::int64_t>(bytes_of(before)));
  for (Exchange& exchange : round.exchanges) exchange.contribution.reset();
  send_results(round, runs);
}

// Position of a source's data for `run`; `before`: elements of the chunk that precede the run.
const std::byte* LeafAllreduce::input_of(const Round& round, const LeafPlan::Source& source,
                                         const Run& run, std::int64_t before) const {
  if (source.rank == lane_.rank) {
    return run.piece->input + bytes_of(source.number * run.piece->count + run.first);
  }
  const int distance = (source.rank - lane_.rank + lane_.size()) % lane_.size();
  const Exchange& exchange = round.exchanges[static_cast<std::size_t>(distance) - 1];
  const std::int64_t count = chunk_of(lane_.rank, round.number).count;
  return exchange.contribution.get() + bytes_of(source.number * count + before);
}

void LeafAllreduce::send_results(Round& round, const std::vector<Run>& runs) {
  if (runs.empty()) return;
  std::vector<ConstBytes> spans;
  for (const Run& run : runs) {
    spans.emplace_back(run.piece->output + bytes_of(run.first), bytes_of(run.count));
  }
  for (Exchange& exchange : round.exchanges) {
    exchange.result_sent = send(exchange.rank, results, spans);
  }
}

Ticket LeafAllreduce::send(int rank, std::uint64_t part, const std::vector<ConstBytes>& spans) {
  lane_.counters->messages_sent.add(1);
  for (const ConstBytes& span : spans) {
    lane_.counters->payload_bytes_sent.add(static_cast<std::int64_t>(span.size()));
  }
  return lane_.transport->send(lane_.world_rank(rank), lane_.tag_of(part), spans);
}

Ticket LeafAllreduce::take(int rank, std::uint64_t part, const std::vector<MutableBytes>& spans) {
  for (const MutableBytes& span : spans) {
    lane_.counters->payload_bytes_received.add(static_cast<std::int64_t>(span.size()));
  }
  return lane_.transport->recv(lane_.world_rank(rank), lane_.tag_of(part), spans);
}

bool LeafAllreduce::is_over(const Ticket& ticket) {
  if (!ticket) return true;
  if (!ticket->done) return false;
  if (!ticket->status.ok() && status_.ok()) status_ = ticket->status;
  return status_.ok();
}

bool LeafAllreduce::is_over(const Round& round) {
  if (!round.is_combined) return false;
  return std::all_of(round.exchanges.begin(), round.exchanges.end(), [&](const Exchange& each) {
    const bool takes_result = results_taken_[static_cast<std::size_t>(each.rank)] > round.number;
    return takes_result && is_over(each.contribution_sent) && is_over(each.result_sent) &&
           is_over(each.result_taken);
  });
}

std::vector<int> LeafAllreduce::awaited() const {
  std::set<int> ranks;
  for (const Round& round : rounds_) {
    for (const Exchange& each : round.exchanges) {
      for (const Ticket& ticket :
           {each.contribution_sent, each.contribution_taken, each.result_sent, each.result_taken}) {
        if (ticket && !ticket->done) ranks.insert(ticket->peer);
      }
    }
  }
  return {ranks.begin(), ranks.end()};
}

std::unique_ptr<Operation> packed_leaves(
    BufferPool& pool, const Lane& lane, const Reduction& reduction,
    const std::vector<Piece>& pieces,
    const std::function<std::unique_ptr<Operation>(const Piece& all)>& start) {
  const std::size_t element = size_of(reduction.dtype);
  const std::int64_t count = elements_of(pieces);
  const std::size_t bytes = static_cast<std::size_t>(count) * element;
  const int partials = reduction.leaves->partials_of(lane.rank);
  const auto pack = [&](std::byte* buffer) {
    for (int number = 0; number < partials; ++number) {
      for (const Piece& piece : pieces) {
        const std::size_t length = static_cast<std::size_t>(piece.count) * element;
        copy_bytes(buffer, piece.input + static_cast<std::size_t>(number) * length, length,
                   Stores::cached);
        buffer += length;
      }
    }
    lane.counters->bytes_packed.add(static_cast<std::int64_t>(bytes) * partials);
  };
  auto unpack = [element, pieces, bytes, counters = lane.counters](const std::byte* buffer) {
    for (const Piece& piece : pieces) {
      const std::size_t length = static_cast<std::size_t>(piece.count) * element;
      copy_bytes(piece.output, buffer, length, Stores::cached);
      buffer += length;
    }
    counters->bytes_packed.add(static_cast<std::int64_t>(bytes));
  };
  return std::make_unique<PackedOperation>(
      pool, bytes * static_cast<std::size_t>(std::max(1, partials)), pack,
      [&](std::byte* buffer) { return start({buffer, buffer, count}); }, std::move(unpack));
}

}  // namespace rueda
