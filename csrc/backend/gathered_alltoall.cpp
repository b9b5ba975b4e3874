#include "backend/gathered_alltoall.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "backend/lengths.h"
#include "backend/packed_operation.h"
#include "backend/stages.h"
#include "backend/tickets.h"

namespace rueda {

namespace {

// Largest message that transports hand over immediately. Larger ones wait until the receiver is
// about to know where they go, so that it need not buffer them.
constexpr std::size_t max_early = LinkCosts::small_chunk;

std::size_t index(int number) {
  return static_cast<std::size_t>(number);
}

}  // namespace

GatheredAlltoall::GatheredAlltoall(const Lane& lane, const HostPolicy& policy, BufferPool& pool,
                                   AlltoallInput input, AllocateRows allocate)
    : lane_(lane),
      hosts_(*lane.hosts),
      pool_(pool),
      input_(std::move(input)),
      allocate_(std::move(allocate)),
      gathers_(index(hosts_.hosts()), 0),
      taken_(index(hosts_.size()), nullptr),
      counts_(index(hosts_.hosts())),
      received_rows_(index(lane.size()), 0) {
  if (lane_.before_links != nullptr) {
    gather(policy);
  } else {
    bundle_own_rows();
    tell_counts();
  }
}

GatheredAlltoall::~GatheredAlltoall() {
  pull_.reset();
  pool_.give_back(std::move(gathered_));
}

std::vector<int> GatheredAlltoall::carried(int host) const {
  std::vector<int> ranks;
  for (int member = 0; member < hosts_.size(host); ++member) {
    if (hosts_.member_of_ring(hosts_.host(), member) != hosts_.rank()) continue;
    ranks.push_back(hosts_.member(host, member));
  }
  return ranks;
}

// --- Within the host

// Copies rows that other members cannot reach, unless there are too many to be gathered anyway.
void GatheredAlltoall::gather(const HostPolicy& policy) {
  const std::size_t length = bytes(sum(input_.rows));
  const bool must_copy =
      length > policy.flat_limit && !is_reachable_here(lane_, input_.data, length);
  const auto mean = static_cast<std::int64_t>(length / index(lane_.size()));
  const bool offers = !must_copy || hosts_.alltoall().choose(mean) == Algorithm::gathered;
  std::vector<std::int64_t> numbers = input_.rows;
  numbers.push_back(offers ? 1 : 0);
  const std::uint64_t ticket = line_up(lane_.before_links, 1);
  const auto start = [&](const std::byte* data) -> std::unique_ptr<Operation> {
    auto pull = std::make_unique<HostPull>(
        *lane_.before_links, policy, data, length, std::move(numbers),
        [this](const HostPull& others) { return what_to_take(others); },
        HostCollective::Begin::later);
    pull->count_in(*lane_.counters);
    pull->start(ticket);
    return pull;
  };
  if (!must_copy) {
    pull_ = start(input_.data);
  } else if (!offers) {
    pull_ = start(nullptr);
  } else {
    pull_ = std::make_unique<PackedOperation>(
        pool_, length,
        [&](std::byte* buffer) { copy_bytes(buffer, input_.data, length, Stores::cached); }, start,
        [](const std::byte*) {});
    lane_.counters->bytes_packed.add(static_cast<std::int64_t>(length));
  }
}

void GatheredAlltoall::read_rows(const HostPull& pull) {
  for (int member = 0; member < pull.size(); ++member) {
    std::vector<std::int64_t>& rows = rows_.emplace_back();
    std::vector<std::int64_t>& before = rows_before_.emplace_back(1, 0);
    for (int to = 0; to < lane_.size(); ++to) {
      rows.push_back(pull.number_of(member, to));
      before.push_back(before.back() + rows.back());
    }
    all_offer_ = all_offer_ && pull.number_of(member, lane_.size()) != 0;
  }
}

bool GatheredAlltoall::should_gather(int host) const {
  std::size_t all = 0;
  for (int member = 0; member < hosts_.size(host); ++member) {
    for (const auto& rows : rows_) all += bytes(rows[index(hosts_.member(host, member))]);
  }
  const std::size_t pairs = rows_.size() * index(hosts_.size(host));
  const auto mean = static_cast<std::int64_t>(all / pairs);
  return all_offer_ && hosts_.alltoall().choose(mean) == Algorithm::gathered;
}

std::vector<HostPull::Transfer> GatheredAlltoall::what_to_take(const HostPull& pull) {
  read_rows(pull);
  std::vector<HostPull::Transfer> transfers;
  std::vector<std::size_t> places;
  std::size_t end = 0;
  const auto take = [&](int member, int to) {
    const std::size_t length = bytes(rows_[index(member)][index(to)]);
    transfers.push_back({member, bytes(rows_before_[index(member)][index(to)]), nullptr, length});
    places.push_back(std::exchange(end, end + length));
  };
  std::vector<std::size_t> begins;  // of the bundles
  for (int host = 0; host < hosts_.hosts(); ++host) {
    gathers_[index(host)] = should_gather(host) ? 1 : 0;
    if (gathers_[index(host)] == 0 || host == hosts_.host()) continue;
    for (const int to : carried(host)) {
      begins.push_back(end);
      for (int member = 0; member < pull.size(); ++member) take(member, to);
      bundles_.push_back({to, nullptr, end - begins.back()});
    }
  }
  const std::size_t first_of_host = transfers.size();
  if (gathers_[index(hosts_.host())] != 0) {
    for (int member = 0; member < pull.size(); ++member) {
      if (member != hosts_.rank()) take(member, lane_.rank);
    }
  }
  gathered_ = pool_.take(end);
  std::byte* const buffer = gathered_.bytes.get();
  for (std::size_t i = 0; i < transfers.size(); ++i) transfers[i].target = buffer + places[i];
  for (std::size_t i = 0; i < bundles_.size(); ++i) bundles_[i].data = buffer + begins[i];
  for (std::size_t i = first_of_host; i < transfers.size(); ++i) {
    taken_[index(transfers[i].member)] = transfers[i].target;
  }
  return transfers;
}

// For a rank that is alone on its host.
void GatheredAlltoall::bundle_own_rows() {
  rows_ = {input_.rows};
  std::fill(gathers_.begin(), gathers_.end(), 1);
  std::vector<std::int64_t>& before = rows_before_.emplace_back(1, 0);
  for (const std::int64_t rows : input_.rows) before.push_back(before.back() + rows);
  for (int host = 0; host < hosts_.hosts(); ++host) {
    if (host == hosts_.host()) continue;
    for (const int to : carried(host)) {
      bundles_.push_back(
          {to, input_.data + bytes(before[index(to)]), bytes(input_.rows[index(to)])});
    }
  }
}

// --- Between ranks

void GatheredAlltoall::send(int to, ConstBytes bytes) {
  sends_.push_back(lane_.transport->send(lane_.world_rank(to), lane_.tag, {&bytes, 1}));
  lane_.counters->messages_sent.add(1);
}

void GatheredAlltoall::send_bundle(const Bundle& bundle) {
  if (bundle.bytes == 0) return;
  send(bundle.to, {bundle.data, bundle.bytes});
  lane_.counters->payload_bytes_sent.add(static_cast<std::int64_t>(bundle.bytes));
}

void GatheredAlltoall::receive(int from, std::span<const MutableBytes> spans) {
  if (spans.empty()) return;
  receives_.push_back(lane_.transport->recv(lane_.world_rank(from), lane_.tag, spans));
  for (const MutableBytes& span : spans) {
    lane_.counters->payload_bytes_received.add(static_cast<std::int64_t>(span.size()));
  }
}

// Each host starts with the next one, so that not all send to the first.
void GatheredAlltoall::tell_counts() {
  for (int distance = 1; distance < hosts_.hosts(); ++distance) {
    const int host = (hosts_.host() + distance) % hosts_.hosts();
    const int from = hosts_.member(host, hosts_.member_of_ring(host, hosts_.rank()));
    std::vector<std::int64_t>& counts = counts_[index(host)];
    counts.resize(1 + index(hosts_.size(host)));
    const MutableBytes target = std::as_writable_bytes(std::span(counts));
    awaited_counts_.push_back(
        lane_.transport->recv(lane_.world_rank(from), lane_.tag, {&target, 1}));
  }
  for (int distance = 1; distance < hosts_.hosts(); ++distance) {
    const int host = (hosts_.host() + distance) % hosts_.hosts();
    for (const int to : carried(host)) {
      std::vector<std::int64_t>& counts = told_.emplace_back();
      counts.push_back(gathers_[index(host)]);
      for (const auto& rows : rows_) counts.push_back(rows[index(to)]);
      send(to, std::as_bytes(std::span(counts)));
      const auto bundle = std::find_if(bundles_.begin(), bundles_.end(),
                                       [&](const Bundle& each) { return each.to == to; });
      if (bundle != bundles_.end() && bundle->bytes <= max_early) send_bundle(*bundle);
    }
  }
}

void GatheredAlltoall::exchange_rows() {
  rows_known_ = true;
  for (int host = 0; host < hosts_.hosts(); ++host) {
    for (int member = 0; member < hosts_.size(host); ++member) {
      received_rows_[index(hosts_.member(host, member))] =
          host == hosts_.host() ? rows_[index(member)][index(lane_.rank)]
                                : counts_[index(host)][1 + index(member)];
    }
  }
  std::vector<std::size_t> at{0};  // where each rank's rows begin
  for (const std::int64_t rows : received_rows_) at.push_back(at.back() + bytes(rows));
  std::byte* const output = allocate_(received_rows_);
  take_rows_of_host(output, at);
  for (int host = 0; host < hosts_.hosts(); ++host) {
    if (host != hosts_.host()) receive_rows(host, output, at);
  }
  for (const Bundle& bundle : bundles_) {
    if (bundle.bytes > max_early) send_bundle(bundle);
  }
  for (int distance = 0; distance < hosts_.hosts(); ++distance) {
    const int host = (hosts_.host() + distance) % hosts_.hosts();
    if (gathers_[index(host)] == 0) send_rows(host);
  }
}

void GatheredAlltoall::take_rows_of_host(std::byte* output, const std::vector<std::size_t>& at) {
  for (int member = 0; member < hosts_.size(); ++member) {
    const int from = hosts_.member(hosts_.host(), member);
    const MutableBytes target(output + at[index(from)], at[index(from) + 1] - at[index(from)]);
    if (target.empty()) continue;
    if (from == lane_.rank) {
      const std::int64_t before = rows_before_[index(member)][index(lane_.rank)];
      std::memcpy(target.data(), input_.data + bytes(before), target.size());
    } else if (taken_[index(member)] != nullptr) {
      std::memcpy(target.data(), taken_[index(member)], target.size());
    } else {
      receive(from, {&target, 1});
    }
  }
}

void GatheredAlltoall::receive_rows(int host, std::byte* output,
                                    const std::vector<std::size_t>& at) {
  const bool is_gathered = counts_[index(host)].front() != 0;
  std::vector<MutableBytes> spans;
  for (int member = 0; member < hosts_.size(host); ++member) {
    const int from = hosts_.member(host, member);
    const MutableBytes target(output + at[index(from)], at[index(from) + 1] - at[index(from)]);
    if (target.empty()) continue;
    spans.push_back(target);
    if (is_gathered) continue;
    receive(from, spans);
    spans.clear();
  }
  receive(hosts_.member(host, hosts_.member_of_ring(host, hosts_.rank())), spans);
}

void GatheredAlltoall::send_rows(int host) {
  for (int member = 0; member < hosts_.size(host); ++member) {
    const int to = hosts_.member(host, member);
    const std::vector<std::int64_t>& before = rows_before_[index(hosts_.rank())];
    if (to != lane_.rank) {
      send_bundle({to, input_.data + bytes(before[index(to)]), bytes(input_.rows[index(to)])});
    }
  }
}

// --- Progress

bool GatheredAlltoall::all_done(const std::vector<Ticket>& tickets) {
  const bool all = rueda::all_done(tickets, status_);
  done_ = done_ || !status_.ok();
  return all;
}

bool GatheredAlltoall::advance() {
  if (done_) return false;
  bool moved = false;
  if (pull_) {
    moved = pull_->advance();
    if (!pull_->done()) return moved;
    status_ = pull_->status();
    done_ = !status_.ok();
    if (done_) return true;
    pull_.reset();
    tell_counts();
  }
  if (!rows_known_ && all_done(awaited_counts_)) {
    exchange_rows();
    moved = true;
  }
  if (rows_known_ && all_done(receives_) && all_done(sends_)) done_ = true;
  return moved || done_;
}

std::vector<int> GatheredAlltoall::awaited() const {
  if (pull_) return pull_->awaited();
  return awaited_peers({&awaited_counts_, &receives_, &sends_});
}

}  // namespace rueda
