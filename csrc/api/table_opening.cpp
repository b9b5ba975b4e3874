#include "api/table_opening.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "api/collectives.h"
#include "api/table_sharing.h"
#include "core/available_memory.h"
#include "core/interruption.h"
#include "core/strings.h"
#include "plan/negotiation_message.h"
#include "plan/wire.h"
#include "server/update_rule.h"

namespace rueda {

namespace {

// What one rank reports about the table that it opens.
struct Facts {
  Status error;
  std::vector<std::pair<std::string, std::string>> fields;  // which must agree
  std::uint64_t number = 0;                                 // which it has not given to any table
  std::int64_t needed = 0;                                  // bytes
  std::int64_t available = 0;
};

// An integer, or the shortest text that identifies this floating-point number exactly.
template <class Number>
std::string exact(Number number) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number);
  return {text.data(), end.ptr};
}

template <class Values>
std::string listed(const Values& values) {
  std::string text;
  for (const auto& value : values) text += str(text.empty() ? "" : ", ", exact(value));
  return "[" + text + "]";
}

std::vector<std::pair<std::string, std::string>> fields_of(const TableOptions& options) {
  return {{"size", str(options.size)},
          {"width", str(options.width)},
          {"initial rows", str(exact(options.initial.value), " +- ", exact(options.initial.spread),
                               ", seed ", options.initial.seed)},
          {"bounds", listed(options.bounds)},
          {"rule", options.rule},
          {"parameters", listed(options.parameters)},
          {"order", options.order == TableOrder::ring ? "ring" : "as they come"},
          {"replicated", options.replicated ? "yes" : "no"}};
}

Status check(const TableOptions& options, std::size_t ranks) {
  const auto invalid = [](const auto&... why) {
    return Status(ErrorCode::invalid_argument, str(why...));
  };
  if (Status status = check_parameters(options.rule, options.parameters); !status.ok()) {
    return status;
  }
  constexpr std::int64_t most = std::int64_t{1} << 50;
  constexpr std::int64_t widest = std::int64_t{1} << 24;
  if (options.size > most || options.width > widest) {
    return invalid("size ", options.size, " and width ", options.width, ": a table has at most ",
                   most, " elements, and rows of at most ", widest);
  }
  if (!std::isfinite(options.initial.value) || !std::isfinite(options.initial.spread) ||
      options.initial.spread < 0) {
    return invalid("initial rows of ", options.initial.value, " +- ", options.initial.spread,
                   ": both must be finite, and the spread not negative");
  }
  if (options.size < 0 || options.width < 0 || (options.size > 0) == (options.width > 0)) {
    return invalid("size ", options.size, " and width ", options.width,
                   ": exactly one of them must be positive, the other 0");
  }
  if (options.width > 0) {
    if (!options.bounds.empty()) return invalid("a table of rows has no bounds");
    if (options.order == TableOrder::ring) return invalid("a table of rows has no ring order");
    return {};
  }
  if (options.bounds.empty()) return {};
  if (options.bounds.size() != ranks + 1) {
    return invalid(options.bounds.size(), " bounds for ", ranks, " ranks: ", ranks + 1,
                   " are needed");
  }
  if (!std::is_sorted(options.bounds.begin(), options.bounds.end())) {
    return invalid("the bounds ", listed(options.bounds), " do not ascend");
  }
  if (options.bounds.front() != 0 || options.bounds.back() != options.size) {
    return invalid("the bounds ", listed(options.bounds), " must begin at 0 and end at the size, ",
                   options.size);
  }
  return {};
}

std::vector<std::int64_t> bounds_of(const TableOptions& options, std::size_t ranks) {
  if (!options.bounds.empty()) return options.bounds;
  const auto count = static_cast<std::int64_t>(ranks);
  std::vector<std::int64_t> bounds{0};
  for (std::int64_t i = 0; i < count; ++i) {
    bounds.push_back(bounds.back() + options.size / count + (i < options.size % count ? 1 : 0));
  }
  return bounds;
}

std::vector<std::byte> encode(const Facts& facts) {
  Writer writer;
  write(writer, facts.error);
  writer.unsigned_integer(facts.fields.size());
  for (const auto& [field, value] : facts.fields) {
    writer.text(field);
    writer.text(value);
  }
  writer.unsigned_integer(facts.number);
  writer.integer(facts.needed);
  writer.integer(facts.available);
  Writer framed;
  framed.block(writer.take());
  return framed.take();
}

Facts decode(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  Facts facts;
  facts.error = read_status(reader);
  const std::size_t fields = reader.size();
  for (std::size_t i = 0; i < fields && reader.ok(); ++i) {
    std::string field = reader.text();
    facts.fields.emplace_back(std::move(field), reader.text());
  }
  facts.number = reader.unsigned_integer();
  facts.needed = reader.integer();
  facts.available = reader.integer();
  if (!reader.ok()) throw InternalError("a rank sent an unreadable description of its table");
  return facts;
}

Handle submit(Runtime& runtime, int set_id, Submission submission) {
  std::vector<Submission> one;
  one.push_back(std::move(submission));
  return runtime.submit(set_id, std::move(one)).front();
}

std::vector<Facts> exchange(const Facts& own, const std::string& name, Runtime& runtime,
                            int set_id) {
  auto bytes = std::make_unique<std::vector<std::byte>>(encode(own));
  const TensorView view{bytes->data(), {static_cast<std::int64_t>(bytes->size())}, DataType::uint8};
  const Handle handle = submit(runtime, set_id, submission_of(Collective::allgather, view, name));
  try {
    wait_interruptibly(handle);
  } catch (...) {
    // Ctrl-C: the operation continues for an unknown time.
    if (!handle.done()) static_cast<void>(bytes.release());
    throw;
  }
  const Output& output = handle.output();
  Reader reader({output.data.get(), static_cast<std::size_t>(element_count(output.shape))});
  std::vector<Facts> all;
  while (!reader.at_end() && reader.ok()) all.push_back(decode(reader.block()));
  return all;
}

void compare(const std::vector<Facts>& all, const std::vector<int>& ranks,
             const std::string& table) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].error.ok()) continue;
    throw InvalidArgumentError(str(table, ": rank ", ranks[i], ": ", all[i].error.message()),
                               ranks[i]);
  }
  for (std::size_t field = 0; field < all.front().fields.size(); ++field) {
    std::map<std::string, std::vector<int>> values;
    for (std::size_t i = 0; i < all.size(); ++i) {
      values[all[i].fields.at(field).second].push_back(ranks[i]);
    }
    if (values.size() == 1) continue;
    const std::string& name = all.front().fields[field].first;
    std::string text;
    ErrorDetails details{.tensor = table, .field = name};
    for (const auto& [value, having] : values) {
      text += str(text.empty() ? "" : ", ", describe_ranks(having), " with ", name, " ", value);
      details.values.push_back(value);
    }
    throw MismatchError(str(table, ": its options differ between ranks: ", text), -1,
                        std::move(details));
  }
}

// Every rank gets the same result.
void require_memory(const std::vector<Facts>& all, const std::vector<int>& ranks,
                    const Topology& topology, const std::string& table) {
  struct OfHost {
    std::int64_t needed = 0;
    std::int64_t available = 0;
    std::vector<int> ranks;
  };
  std::map<int, OfHost> hosts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto rank = static_cast<std::size_t>(ranks[i]);
    OfHost& host = hosts[rank < topology.host_of.size() ? topology.host_of[rank] : 0];
    host.needed += all[i].needed;
    host.available =
        host.ranks.empty() ? all[i].available : std::min(host.available, all[i].available);
    host.ranks.push_back(ranks[i]);
  }
  for (const auto& [number, host] : hosts) {
    if (host.available == 0 || host.needed <= host.available) continue;
    throw InvalidArgumentError(str(table, " needs ", host.needed, " bytes on the host of ",
                                   describe_ranks(host.ranks), ", which has ", host.available,
                                   " left: use more hosts, other bounds or no replicas"));
  }
}

}  // namespace

void outlast_interruptibly(const Handle& handle) {
  while (!handle.state()->outlast(Clock::now() + pause_between_looks())) {
    if (is_interruptible()) look_for_interruption();
  }
}

void wait_interruptibly(const Handle& handle) {
  outlast_interruptibly(handle);
  handle.wait();
}

Handle table_barrier(Runtime& runtime, int set_id, const std::string& name) {
  return submit(runtime, set_id,
                submission_of(Collective::barrier, {nullptr, {0}, DataType::uint8}, name));
}

OpenedTable open_table(const TableOptions& options, std::shared_ptr<Runtime> runtime, int set_id) {
  const auto members = runtime->process_sets().find(set_id);
  if (!members || members->rank < 0) {
    throw InvalidArgumentError(str("rank ", runtime->topology().rank, " cannot open table '",
                                   options.name, "': it is not a member of process set ",
                                   options.process_set.id));
  }
  const std::string table = str("table '", options.name, "'");
  const std::string operation = str("rueda.", table);
  const std::size_t ranks = members->ranks.size();
  const auto rank = static_cast<std::size_t>(members->rank);
  const std::size_t previous = (rank + ranks - 1) % ranks;
  Facts own{.error = check(options, ranks), .fields = fields_of(options)};
  std::shared_ptr<void> name = runtime->tables().names().take(set_id, options.name);
  if (!name) {
    own.error =
        Status(ErrorCode::invalid_argument,
               "a table of that name is open already: close it first, or give another name");
  }
  std::vector<std::int64_t> bounds;
  if (own.error.ok() && options.size > 0) {
    bounds = bounds_of(options, ranks);
    std::int64_t held = bounds[rank + 1] - bounds[rank];
    if (options.replicated) held += bounds[previous + 1] - bounds[previous];
    const int states = find_update_rule(options.rule)->states;
    own.needed = held * (1 + states) * static_cast<std::int64_t>(sizeof(float));
  }
  own.available = available_memory().value_or(0);
  own.number = runtime->tables().names().number();
  const std::vector<Facts> all = exchange(own, operation, *runtime, set_id);
  compare(all, members->ranks, table);
  require_memory(all, members->ranks, runtime->topology(), table);

  OpenedTable opened{runtime, set_id, {}, bounds, std::move(name)};
  HeldTable& held = opened.held;
  // Unique per table: the first rank of a set uses each of its numbers once.
  held.number = all.front().number * static_cast<std::uint64_t>(runtime->topology().size) +
                static_cast<std::uint64_t>(members->ranks.front());
  held.name = options.name;
  held.ranks = members->ranks;
  held.rank = members->rank;
  held.in_ring_order = options.order == TableOrder::ring;
  held.use = std::make_shared<TableUse>(held.number, options.name, ranks);
  const AppliedRule rule{find_update_rule(options.rule), options.parameters};
  const auto make_shard = [&, &bounds = bounds](std::size_t index,
                                                ShardMemory memory) -> std::shared_ptr<Shard> {
    if (options.width > 0) {
      return std::make_shared<RowShard>(options.width, options.initial, rule, std::move(memory));
    }
    return std::make_shared<DenseShard>(bounds[index], bounds[index + 1], rule, std::move(memory));
  };
  TableSharing sharing(options, bounds, *runtime, held);
  try {
    held.own = make_shard(rank, sharing.own_memory());
    if (options.replicated && ranks > 1) held.replica = make_shard(previous, {});
    sharing.publish();
  } catch (const std::bad_alloc&) {
    // Instead of the barrier, so that the other ranks learn of it there.
    Submission refused =
        submission_of(Collective::barrier, {nullptr, {0}, DataType::uint8}, operation);
    refused.request.error =
        Status(ErrorCode::invalid_argument,
               str(table, ": rank ", runtime->topology().rank, " has no memory for ", own.needed,
                   " bytes: use more ranks, other bounds or no replicas"),
               runtime->topology().rank);
    wait_interruptibly(submit(*runtime, set_id, std::move(refused)));
  }
  if (!bounds.empty()) held.own_count = bounds[rank + 1] - bounds[rank];
  runtime->tables().open(set_id, held).throw_if_error();
  // After this, no rank sends a request to an owner that has not opened the table.
  try {
    wait_interruptibly(table_barrier(*runtime, set_id, operation));
  } catch (...) {
    runtime->tables().close(held.number);  // another rank could not open it
    throw;
  }
  sharing.find_parts(*held.use, rule);
  return opened;
}

}  // namespace rueda
