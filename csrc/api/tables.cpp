// The state of an open table on this rank.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>

#include "api/current_runtime.h"
#include "api/table_opening.h"
#include "core/fork.h"
#include "core/interruption.h"
#include "core/strings.h"
#include "rueda/server.h"

namespace rueda {

struct Table::State {
  TableOptions options;
  OpenedTable opened;
  std::mutex mutex;
  std::vector<Handle> handles;  // of operations that may be in progress
  bool closed = false;          // no more requests are accepted
  bool over = false;
  std::shared_mutex direct_mutex;  // held shared during direct access
  bool is_closing = false;
  std::optional<Handle> closing;  // barrier of all ranks; protected by `mutex`
  const int generation = fork_generation();

  [[nodiscard]] std::size_t ranks() const { return opened.held.ranks.size(); }
  [[nodiscard]] std::int64_t width() const { return std::max<std::int64_t>(1, options.width); }

  [[nodiscard]] InvalidArgumentError invalid(const std::string& why) const {
    return InvalidArgumentError(str("table '", options.name, "': ", why));
  }

  // A child made by fork() has no thread that would carry it out.
  void require_this_process() const {
    if (generation != fork_generation()) throw_forked();
  }

  void close();

  std::shared_ptr<TableOperation> operation(TableVerb verb) {
    auto made = std::make_shared<TableOperation>();
    made->use = opened.held.use;
    made->width = width();
    made->request.verb = verb;
    return made;
  }

  Handle start(std::shared_ptr<TableOperation> operation) {
    require_this_process();
    const std::lock_guard lock(mutex);
    if (closed) throw invalid("it has been closed");
    std::erase_if(handles, [](const Handle& handle) { return handle.done(); });
    if (operation->keeps_order()) operation->use->under_way.fetch_add(1);
    handles.push_back(opened.runtime->tables().use(opened.set_id, std::move(operation)));
    return handles.back();
  }

  // Whether this rank may access shards directly; if so, until `lock` is released.
  bool goes_direct(std::shared_lock<std::shared_mutex>& lock) {
    const TableUse& use = *opened.held.use;
    if (!use.is_direct.load() || use.under_way.load() != 0) return false;
    require_this_process();
    // If the set was removed, requests to owners are refused there; the world is never removed.
    const bool has_set =
        opened.set_id == 0 || opened.runtime->process_sets().find(opened.set_id) != nullptr;
    if (!has_set || opened.runtime->is_broken(opened.set_id)) return false;
    lock = std::shared_lock(direct_mutex);
    return !is_closing;
  }

  // Does directly what this rank can, and leaves the other parts to their owners. Returns whether
  // none is left. Begins with its own shard, so that ranks that arrive together do not queue up.
  template <class Do>
  bool do_direct(TableOperation& operation, const Do& act) {
    std::shared_lock<std::shared_mutex> lock;
    std::vector<TableOperation::Part>& parts = operation.parts;
    if (parts.empty() || !goes_direct(lock)) return false;
    const TableUse& use = *opened.held.use;
    const auto own = static_cast<std::size_t>(opened.held.rank);
    const auto first = static_cast<std::size_t>(
        std::find_if(parts.begin(), parts.end(),
                     [&](const TableOperation::Part& part) { return part.index >= own; }) -
        parts.begin());
    std::int64_t done = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      TableOperation::Part& part = parts[(first + i) % parts.size()];
      const DirectPart* const direct = use.direct[part.index].get();
      if (direct == nullptr || !act(*direct, part)) continue;
      part.owner = -1;
      ++done;
    }
    opened.runtime->metrics().table_parts_direct.add(done);
    std::erase_if(parts, [](const TableOperation::Part& part) { return part.owner < 0; });
    return parts.empty();
  }

  // Counts the staleness of an addition to one part once it is done.
  template <class Do>
  bool add_direct(TableOperation& operation, const Do& act) {
    TableUse& use = *opened.held.use;
    return do_direct(operation, [&](const DirectPart& direct, const TableOperation::Part& part) {
      DirectPart::Addition addition{.factor = operation.request.factor,
                                    .by_staleness = operation.request.by_staleness,
                                    .seen = use.seen[part.index].load()};
      if (!act(direct, part, addition)) return false;
      use.count_staleness(addition.staleness);
      return true;
    });
  }
  template <class Do>
  bool get_direct(TableOperation& operation, const Do& act) {
    TableUse& use = *opened.held.use;
    return do_direct(operation, [&](const DirectPart& direct, const TableOperation::Part& part) {
      std::uint64_t version = 0;
      if (!act(direct, part, version)) return false;
      use.seen[part.index].store(version);
      return true;
    });
  }

  // The handle of something that is done.
  static Handle done() {
    auto state = std::make_shared<HandleState>();
    state->complete({});
    return Handle(state);
  }

  // Ends an addition that is done: sends its tick, which the owners count after it.
  Handle end_addition(bool ticks) { return ticks ? start(tell_all(TableVerb::tick)) : done(); }

  // Divides [begin, begin + count) into parts by owner.
  void divide(TableOperation& operation, std::int64_t begin, std::int64_t count) const {
    if (options.size == 0) throw invalid("it has rows, not elements");
    if (begin < 0 || count < 0 || begin > options.size || count > options.size - begin) {
      throw invalid(str(count, " elements from ", begin, " on are out of range: there are ",
                        options.size, " in all"));
    }
    const std::vector<std::int64_t>& bounds = opened.bounds;
    for (std::size_t index = 0; index < ranks(); ++index) {
      const std::int64_t from = std::max(begin, bounds[index]);
      const std::int64_t to = std::min(begin + count, bounds[index + 1]);
      // In ring order each addition has all parts, even empty ones.
      const bool in_turn = opened.held.in_ring_order && operation.request.verb == TableVerb::add;
      if (from >= to && !in_turn) continue;
      operation.parts.push_back({.owner = opened.held.ranks[index],
                                 .index = index,
                                 .begin = in_turn ? bounds[index] : from,
                                 .count = std::max<std::int64_t>(0, to - from)});
    }
  }

  // A request to every owner.
  std::shared_ptr<TableOperation> tell_all(TableVerb verb) {
    auto made = operation(verb);
    for (std::size_t index = 0; index < ranks(); ++index) {
      made->parts.push_back({.owner = opened.held.ranks[index], .index = index});
    }
    return made;
  }

  // Owners without a part of the addition count its tick all the same.
  void tick_elsewhere(TableOperation& operation) const {
    std::vector<bool> told(ranks());
    for (const TableOperation::Part& part : operation.parts) told[part.index] = true;
    for (std::size_t index = 0; index < ranks(); ++index) {
      if (told[index]) continue;
      operation.parts.push_back(
          {.owner = opened.held.ranks[index], .index = index, .only_ticks = true});
    }
  }

  // A get of nothing also waits for the clocks: at this rank's own shard.
  void wait_for_clock(TableOperation& operation) const {
    if (!operation.parts.empty() || !operation.waits_for_clock()) return;
    const auto own = static_cast<std::size_t>(opened.held.rank);
    operation.parts.push_back({.owner = opened.held.ranks[own],
                               .index = own,
                               .begin = opened.bounds.empty() ? 0 : opened.bounds[own]});
  }

  void set_factor(TableOperation& operation, const AddOptions& add) const {
    if (add.by_staleness && opened.held.in_ring_order) {
      throw invalid("in ring order no addition is stale: leave by_staleness off");
    }
    operation.request.factor = add.factor;
    operation.request.by_staleness = add.by_staleness;
    operation.request.ticks = add.ticks;
  }

  void require_rows() const {
    if (options.width == 0) throw invalid("it has elements, not rows");
  }

  // Divides rows by owner.
  void divide_rows(TableOperation& operation, std::span<const std::int64_t> rows,
                   std::span<const int> owners) const;
  // Writes each part's payload: the row numbers, then, if `values` is given, `elements` elements of
  // each row.
  void write_payloads(TableOperation& operation, std::span<const std::int64_t> rows,
                      const float* values, std::int64_t elements) const;

  [[nodiscard]] std::int64_t states() const { return opened.held.own->states(); }
};

void Table::State::divide_rows(TableOperation& operation, std::span<const std::int64_t> rows,
                               std::span<const int> owners) const {
  if (!owners.empty() && owners.size() != rows.size()) {
    throw invalid(str(owners.size(), " owners for ", rows.size(), " rows"));
  }
  std::vector<std::vector<std::int64_t>> positions(ranks());
  for (std::vector<std::int64_t>& each : positions) each.reserve(rows.size() / ranks() * 5 / 4 + 8);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0) throw invalid(str("there is no row ", rows[i]));
    const int owner = owners.empty() ? row_owner(rows[i], ranks()) : owners[i];
    if (owner < 0 || static_cast<std::size_t>(owner) >= ranks()) {
      throw invalid(str("row ", rows[i], " cannot be owned by rank ", owner, " of ", ranks()));
    }
    positions[static_cast<std::size_t>(owner)].push_back(static_cast<std::int64_t>(i));
  }
  for (std::size_t index = 0; index < ranks(); ++index) {
    if (positions[index].empty()) continue;
    const auto count = static_cast<std::int64_t>(positions[index].size());
    operation.parts.push_back({.owner = opened.held.ranks[index],
                               .index = index,
                               .count = count,
                               .positions = std::move(positions[index])});
  }
}

void Table::State::write_payloads(TableOperation& operation, std::span<const std::int64_t> rows,
                                  const float* values, std::int64_t elements) const {
  const auto row_bytes = static_cast<std::size_t>(elements) * sizeof(float);
  for (TableOperation::Part& part : operation.parts) {
    part.payload_bytes = part.positions.size() * (sizeof(std::int64_t) + (values ? row_bytes : 0));
    part.owned.resize(part.payload_bytes);
    std::byte* target = part.owned.data();
    for (const std::int64_t position : part.positions) {
      std::memcpy(target, &rows[static_cast<std::size_t>(position)], sizeof(std::int64_t));
      target += sizeof(std::int64_t);
    }
    if (values != nullptr) {
      for (const std::int64_t position : part.positions) {
        std::memcpy(target, values + position * elements, row_bytes);
        target += row_bytes;
      }
      part.positions.clear();
    }
    part.payload = part.owned.data();
  }
}

Table open_table_in(std::shared_ptr<Runtime> runtime, int set_id, const TableOptions& options) {
  Table table;
  table.state_ = std::make_shared<Table::State>();
  table.state_->options = options;
  table.state_->opened = open_table(options, std::move(runtime), set_id);
  return table;
}

Table::Table(const TableOptions& options) {
  auto [runtime, set_id] = runtime_of(options.process_set);
  *this = open_table_in(std::move(runtime), set_id, options);
}

Table::~Table() = default;
Table::Table(Table&&) noexcept = default;
Table& Table::operator=(Table&&) noexcept = default;

const TableOptions& Table::options() const {
  return state_->options;
}

const std::vector<std::int64_t>& Table::bounds() const {
  return state_->opened.bounds;
}

Handle Table::get(std::span<float> out, const GetOptions& options) {
  auto operation = state_->operation(TableVerb::get);
  operation->request.min_clock = options.min_clock;
  state_->divide(*operation, options.begin, static_cast<std::int64_t>(out.size()));
  for (TableOperation::Part& part : operation->parts) {
    part.target = out.data() + (part.begin - options.begin);
  }
  const auto read = [&](const DirectPart& direct, const TableOperation::Part& part,
                        std::uint64_t& version) {
    return direct.read(part.begin, {part.target, static_cast<std::size_t>(part.count)},
                       options.min_clock, version);
  };
  if (state_->get_direct(*operation, read)) return State::done();
  state_->wait_for_clock(*operation);
  return state_->start(std::move(operation));
}

Handle Table::put(std::span<const float> values, std::int64_t begin) {
  auto operation = state_->operation(TableVerb::put);
  state_->divide(*operation, begin, static_cast<std::int64_t>(values.size()));
  const auto of = [&](const TableOperation::Part& part) {
    return values.subspan(static_cast<std::size_t>(part.begin - begin),
                          static_cast<std::size_t>(part.count));
  };
  const auto write = [&](const DirectPart& direct, const TableOperation::Part& part) {
    return direct.write(part.begin, of(part));
  };
  if (state_->do_direct(*operation, write)) return State::done();
  for (TableOperation::Part& part : operation->parts) {
    part.payload = reinterpret_cast<const std::byte*>(of(part).data());
    part.payload_bytes = of(part).size_bytes();
  }
  return state_->start(std::move(operation));
}

Handle Table::add(std::span<const float> delta, const AddOptions& options) {
  auto operation = state_->operation(TableVerb::add);
  const auto count = static_cast<std::int64_t>(delta.size());
  if (state_->opened.held.in_ring_order && (options.begin != 0 || count != state_->options.size)) {
    throw state_->invalid("in ring order, each addition must cover the whole table");
  }
  state_->divide(*operation, options.begin, count);
  state_->set_factor(*operation, options);
  const auto of = [&](const TableOperation::Part& part) {
    return delta.subspan(static_cast<std::size_t>(part.begin - options.begin),
                         static_cast<std::size_t>(part.count));
  };
  const auto add = [&](const DirectPart& direct, const TableOperation::Part& part,
                       DirectPart::Addition& addition) {
    return direct.add(part.begin, of(part), addition);
  };
  if (state_->add_direct(*operation, add)) return state_->end_addition(options.ticks);
  for (TableOperation::Part& part : operation->parts) {
    const std::span<const float> values =
        state_->opened.held.in_ring_order && part.count == 0 ? std::span<const float>() : of(part);
    part.payload = reinterpret_cast<const std::byte*>(values.data());
    part.payload_bytes = values.size_bytes();
  }
  if (options.ticks) state_->tick_elsewhere(*operation);
  return state_->start(std::move(operation));
}

Handle Table::get_rows(std::span<const std::int64_t> rows, std::span<float> out,
                       std::span<const int> owners, const GetOptions& options) {
  auto operation = state_->operation(TableVerb::get);
  operation->request.min_clock = options.min_clock;
  state_->require_rows();
  if (out.size() != rows.size() * static_cast<std::size_t>(state_->options.width)) {
    throw state_->invalid(str("an output of ", out.size(), " elements for ", rows.size(),
                              " rows of ", state_->options.width));
  }
  operation->out = out.data();
  state_->divide_rows(*operation, rows, owners);
  const auto read = [&](const DirectPart& direct, const TableOperation::Part& part,
                        std::uint64_t& version) {
    return direct.read_rows({rows, part.positions}, out.data(), options.min_clock, version);
  };
  if (state_->get_direct(*operation, read)) return State::done();
  state_->wait_for_clock(*operation);
  state_->write_payloads(*operation, rows, nullptr, 0);
  return state_->start(std::move(operation));
}

Handle Table::put_rows(std::span<const std::int64_t> rows, std::span<const float> values,
                       std::span<const int> owners) {
  auto operation = state_->operation(TableVerb::put);
  state_->require_rows();
  if (values.size() != rows.size() * static_cast<std::size_t>(state_->options.width)) {
    throw state_->invalid(
        str(values.size(), " elements for ", rows.size(), " rows of ", state_->options.width));
  }
  state_->divide_rows(*operation, rows, owners);
  const auto write = [&](const DirectPart& direct, const TableOperation::Part& part) {
    return direct.write_rows({rows, part.positions}, values.data());
  };
  if (state_->do_direct(*operation, write)) return State::done();
  state_->write_payloads(*operation, rows, values.data(), state_->options.width);
  return state_->start(std::move(operation));
}

Handle Table::add_rows(std::span<const std::int64_t> rows, std::span<const float> delta,
                       std::span<const int> owners, const AddOptions& options) {
  auto operation = state_->operation(TableVerb::add);
  state_->require_rows();
  if (delta.size() != rows.size() * static_cast<std::size_t>(state_->options.width)) {
    throw state_->invalid(
        str(delta.size(), " elements for ", rows.size(), " rows of ", state_->options.width));
  }
  state_->divide_rows(*operation, rows, owners);
  state_->set_factor(*operation, options);
  const auto add = [&](const DirectPart& direct, const TableOperation::Part& part,
                       DirectPart::Addition& addition) {
    return direct.add_rows({rows, part.positions}, delta.data(), addition);
  };
  if (state_->add_direct(*operation, add)) return state_->end_addition(options.ticks);
  state_->write_payloads(*operation, rows, delta.data(), state_->options.width);
  if (options.ticks) state_->tick_elsewhere(*operation);
  return state_->start(std::move(operation));
}

Handle Table::put_state(std::span<const float> state, std::int64_t begin, std::int64_t count) {
  auto operation = state_->operation(TableVerb::put_state);
  state_->divide(*operation, begin, count);
  const std::int64_t kinds = state_->states();
  if (static_cast<std::int64_t>(state.size()) != count * kinds) {
    throw state_->invalid(
        str(state.size(), " state values for ", count, " elements with ", kinds, " each"));
  }
  for (TableOperation::Part& part : operation->parts) {
    part.payload_bytes = static_cast<std::size_t>(part.count * kinds) * sizeof(float);
    part.owned.resize(part.payload_bytes);
    for (std::int64_t kind = 0; kind < kinds && part.count > 0; ++kind) {
      std::memcpy(part.owned.data() + static_cast<std::size_t>(kind * part.count) * sizeof(float),
                  state.data() + kind * count + (part.begin - begin),
                  static_cast<std::size_t>(part.count) * sizeof(float));
    }
    part.payload = part.owned.data();
  }
  return state_->start(std::move(operation));
}

Handle Table::put_row_state(std::span<const std::int64_t> rows, std::span<const float> state,
                            std::span<const int> owners) {
  auto operation = state_->operation(TableVerb::put_state);
  state_->require_rows();
  const std::int64_t each = state_->states() * state_->options.width;
  if (state.size() != rows.size() * static_cast<std::size_t>(each)) {
    throw state_->invalid(
        str(state.size(), " state values for ", rows.size(), " rows with ", each, " each"));
  }
  state_->divide_rows(*operation, rows, owners);
  state_->write_payloads(*operation, rows, state.data(), each);
  return state_->start(std::move(operation));
}

int Table::owner_of(std::int64_t row) const {
  return row_owner(row, state_->ranks());
}

Handle Table::tick() {
  return state_->start(state_->tell_all(TableVerb::tick));
}

Handle Table::finish() {
  auto operation = state_->tell_all(TableVerb::tick);
  operation->request.finishes = true;
  return state_->start(std::move(operation));
}

Handle Table::restart(std::int64_t clock) {
  if (clock < 0) throw state_->invalid(str("the clock ", clock, " is negative"));
  auto operation = state_->tell_all(TableVerb::tick);
  operation->request.restarts = true;
  operation->request.min_clock = clock;
  return state_->start(std::move(operation));
}

std::vector<std::vector<std::byte>> Table::call(const std::string& function,
                                                std::span<const std::byte> arguments) {
  auto operation = state_->tell_all(TableVerb::call);
  operation->request.function = function;
  operation->results = std::make_shared<std::vector<std::vector<std::byte>>>(state_->ranks());
  for (TableOperation::Part& part : operation->parts) {
    // A copy, since an interrupted wait leaves the request in progress.
    part.owned.assign(arguments.begin(), arguments.end());
    part.payload = part.owned.data();
    part.payload_bytes = part.owned.size();
  }
  const auto results = operation->results;
  wait_interruptibly(state_->start(std::move(operation)));
  return *results;
}

std::vector<std::uint64_t> Table::staleness() const {
  std::vector<std::uint64_t> counts;
  for (const auto& each : state_->opened.held.use->staleness) counts.push_back(each.load());
  return counts;
}

std::vector<std::uint64_t> Table::seen() const {
  std::vector<std::uint64_t> versions;
  for (const auto& each : state_->opened.held.use->seen) versions.push_back(each.load());
  return versions;
}

std::vector<std::int64_t> Table::clocks() const {
  std::vector<std::int64_t> clocks;
  for (const auto& each : state_->opened.held.use->clocks) clocks.push_back(each.load());
  return clocks;
}

std::vector<TablePart> Table::parts() const {
  state_->require_this_process();  // a child does not have the shared memory
  const HeldTable& held = state_->opened.held;
  const auto previous = static_cast<int>((held.rank + held.ranks.size() - 1) % held.ranks.size());
  std::vector<TablePart> parts;
  for (const auto& [shard, owner] : {std::pair(held.own, held.rank), {held.replica, previous}}) {
    if (!shard || !shard->close_shared()) continue;
    TablePart& part = parts.emplace_back();
    part.owner = owner;
    part.version = shard->version();
    shard->visit([&, &shard = shard](std::int64_t index, std::span<const float> values) {
      if (shard->has_rows()) {
        part.rows.push_back(index);
      } else {
        part.begin = index;
      }
      part.values.insert(part.values.end(), values.begin(), values.end());
    });
    shard->visit_state([&](std::int64_t /*index*/, std::span<const float> state) {
      part.state.insert(part.state.end(), state.begin(), state.end());
    });
  }
  return parts;
}

void Table::close() {
  state_->close();
}

// Errors of operations are reported by their handles. An interrupted call can be repeated.
void Table::State::close() {
  require_this_process();
  std::vector<Handle> under_way;
  {
    const std::lock_guard lock(mutex);
    if (over) return;
    closed = true;
    under_way = handles;
  }
  {
    const std::lock_guard lock(direct_mutex);
    is_closing = true;
  }
  for (const Handle& handle : under_way) outlast_interruptibly(handle);
  Runtime& runtime = *opened.runtime;
  // The first thread here starts the barrier, and the first one whose wait for it ends closes the
  // table.
  std::optional<Handle> meeting;
  {
    const std::lock_guard lock(mutex);
    // All ranks of a set remove it together.
    const bool has_set = runtime.process_sets().find(opened.set_id) != nullptr;
    if (has_set && !closing) {
      closing =
          table_barrier(runtime, opened.set_id, str("rueda.table '", options.name, "' is closed"));
    }
    if (has_set) meeting = closing;
  }
  const auto end = [&] {
    const std::lock_guard lock(mutex);
    if (over) return;
    runtime.tables().close(opened.held.number);
    opened.name.reset();
    over = true;
  };
  try {
    if (meeting) wait_interruptibly(*meeting);
  } catch (...) {
    if (meeting->done()) end();
    throw;
  }
  end();
}

}  // namespace rueda
