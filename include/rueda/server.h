// Tables: parameters that are divided over the ranks of a process set. Ranks read them and add to
// them at any time; the others do not have to take part. Each rank owns a part and serves it while
// its application computes; no rank is special. This is the basis of asynchronous training: Dean et
// al., "Large scale distributed deep networks", NIPS 2012, section 4.1; Ho et al., "More effective
// distributed ML via a stale synchronous parallel parameter server", NIPS 2013.
//
//   rueda::Table table({.name = "weights", .size = 1'000'000});   // on all ranks
//   std::vector<float> weights(1'000'000);
//   table.get(weights).wait();
//   table.add(delta, {.ticks = true});          // each rank, whenever it has something
//   table.close();                              // on all ranks
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "rueda/rueda.h"

namespace rueda {

class Runtime;

// --- What runs at the owner ---------------------------------------------------------------------

// One addition as the owner of the values applies it.
struct UpdateArguments {
  std::span<float> values;
  float* state;                  // the rule's state: kind k of values[i] is state[k * stride + i]
  std::ptrdiff_t stride;         // unused without state
  std::span<const float> delta;  // as many as values
  float factor;                  // multiplies the delta
  std::span<const double> parameters;
};

// How an addition changes values. Built in:
//   "sum"      values += factor * delta
//   "adagrad"  g = factor * delta; state += g^2; values -= rate * g / (sqrt(state) + epsilon),
//              with the parameters rate and epsilon (Duchi et al., JMLR 2011)
struct UpdateRule {
  void (*apply)(const UpdateArguments& update) = nullptr;
  int states = 0;                            // numbers kept per value, initially 0
  std::vector<std::string> parameters = {};  // their names
};

// Registers a rule of the application, on every rank before a table that uses it is opened. Rueda's
// thread calls `apply` on parts of a table one after the other; it must not throw, wait or call
// Rueda. Throws InvalidArgumentError for a name that is taken.
void register_update_rule(const std::string& name, UpdateRule rule);

// The part of a table that one rank owns, as a function sees it.
class ShardView {
 public:
  virtual ~ShardView() = default;
  // Consecutive elements, the first with this index; or one row, with its number.
  using Visitor = std::function<void(std::int64_t index, std::span<const float> values)>;
  // All elements; or all rows that were ever written or added to, in any order.
  virtual void visit(const Visitor& visitor) const = 0;
  [[nodiscard]] virtual bool has_rows() const = 0;
};

// What Table::call() runs at each owner. What it throws is raised at the caller. Built in: "min",
// "max", "sum", "sum_of_squares" (each a double), "count" (of values, an int64), and "top" (takes
// an int64 k; k pairs of an int64 index and a float magnitude, the largest first).
using ShardFunction = std::function<std::vector<std::byte>(const ShardView& shard,
                                                           std::span<const std::byte> arguments)>;
// Registers a function of the application, on every rank before it is called; the same rules apply
// as for register_update_rule().
void register_shard_function(const std::string& name, ShardFunction function);

// --- Tables -------------------------------------------------------------------------------------

// The contents of a row before anything is added to it: `value` plus, if there is a spread, a
// number in [-spread, spread) that depends on seed, row and column.
struct InitialRows {
  float value = 0;
  float spread = 0;
  std::uint64_t seed = 0;
};

enum class TableOrder : std::uint8_t {
  as_they_come,  // each addition counts separately
  ring,  // one addition from each rank makes a step: they are added up in the order of the ring,
         // with the same bits as a ring allreduce, and the sum counts as one addition
};

struct TableOptions {
  std::string name = {};   // unique among the open tables of the set
  std::int64_t size = 0;   // number of elements, initially zeros; 0 for a table of rows
  std::int64_t width = 0;  // of a table of rows: elements per row. Rows have any number from 0 on,
                           // and take memory once they are written or added to
  InitialRows initial = {};
  // Where each rank's part begins, and where the last one ends: one entry more than the set has
  // ranks. Empty: as even as possible, earlier ranks get one more.
  std::vector<std::int64_t> bounds = {};
  std::string rule = "sum";
  std::vector<double> parameters = {};
  TableOrder order = TableOrder::as_they_come;  // of tables without rows
  // The next rank of the set keeps a copy of each part: an addition is done when both have it.
  bool replicated = false;
  ProcessSet process_set = {};
};

struct GetOptions {
  std::int64_t begin = 0;
  // Waits until every rank has ticked this often, or has finished; the result then includes what
  // they added with these ticks. Bounds staleness (Ho et al.): a rank that has ticked c times and
  // asks for c - s is at most s + 1 steps ahead of any other.
  std::int64_t min_clock = 0;
};

struct AddOptions {
  std::int64_t begin = 0;
  float factor = 1;  // multiplies the delta
  // Divides the factor by 1 + staleness: how many additions the owner has counted since this rank
  // last got values from it. The check and the addition are one atomic step. Jiang et al.,
  // "Heterogeneity-aware distributed parameter servers", SIGMOD 2017 (DynSGD).
  bool by_staleness = false;
  bool ticks = false;  // completes a step of this rank, also at owners that get no data from it
};

// What one rank holds when the world is left or broken; see Table::parts().
struct TablePart {
  std::int64_t begin = 0;  // of a table without rows
  std::vector<std::int64_t> rows = {};
  std::vector<float> values = {};
  std::uint64_t version = 0;  // additions counted
  int owner = 0;              // rank within the set
  // The rule's state: for a row all kinds side by side, for elements one kind after the other.
  std::vector<float> state = {};
};

// A table on the ranks of a process set. All of them open it, with the same options, and close it;
// everything else each rank does on its own. The handles of get(), put() and add() complete when
// the owners have done the work; until then the memory must stay valid and unchanged. What one rank
// asks of one table is done in its order, but a get() that waits for a clock lets others pass. Any
// thread may call any function. A moved-from table may only be destroyed or assigned to.
class Table {
 public:
  // Throws, on every rank, MismatchError if options differ, InvalidArgumentError if they make no
  // sense or need more memory than a host has (with the sizes).
  explicit Table(const TableOptions& options);
  ~Table();
  Table(Table&&) noexcept;
  Table& operator=(Table&&) noexcept;

  [[nodiscard]] const TableOptions& options() const;
  [[nodiscard]] const std::vector<std::int64_t>& bounds() const;

  // Elements from `begin` on. What comes from one owner is a consistent snapshot: whole additions.
  Handle get(std::span<float> out, const GetOptions& options = {});
  Handle put(std::span<const float> values, std::int64_t begin = 0);
  Handle add(std::span<const float> delta, const AddOptions& options = {});

  // For a table of rows: the rows' elements one after the other. `owners`: ranks within the set;
  // empty: owner_of(). A row must always have the same owner. add_rows() takes each row once.
  Handle get_rows(std::span<const std::int64_t> rows, std::span<float> out,
                  std::span<const int> owners = {}, const GetOptions& options = {});
  Handle put_rows(std::span<const std::int64_t> rows, std::span<const float> values,
                  std::span<const int> owners = {});
  Handle add_rows(std::span<const std::int64_t> rows, std::span<const float> delta,
                  std::span<const int> owners = {}, const AddOptions& options = {});
  [[nodiscard]] int owner_of(std::int64_t row) const;

  // Sets the rule's state of `count` elements from `begin` on, or of rows, in TablePart's layout.
  // For values copied from another table.
  Handle put_state(std::span<const float> state, std::int64_t begin, std::int64_t count);
  Handle put_row_state(std::span<const std::int64_t> rows, std::span<const float> state,
                       std::span<const int> owners = {});

  // tick(): this rank has done a step. finish(): it has done all; nobody waits for it any more.
  Handle tick();
  Handle finish();
  // Sets this rank's clock. If all ranks do so between two barriers, they continue as equals,
  // whatever their clocks were.
  Handle restart(std::int64_t clock = 0);

  // Runs a function at each owner; returns the results by rank of the set.
  [[nodiscard]] std::vector<std::vector<std::byte>> call(const std::string& function,
                                                         std::span<const std::byte> arguments = {});

  // Entry i: how many of this rank's additions to a part met staleness i; the last entry counts all
  // staler ones.
  [[nodiscard]] std::vector<std::uint64_t> staleness() const;
  // For each rank of the set: how many additions its part had when this rank last got values of it.
  [[nodiscard]] std::vector<std::uint64_t> seen() const;

  // For each rank of the set: how many ticks this rank has heard of; the largest number once it has
  // finished.
  [[nodiscard]] std::vector<std::int64_t> clocks() const;

  // What this rank owns, and what it keeps for the previous rank. For a world that is broken or has
  // been left: nothing may change the table meanwhile.
  [[nodiscard]] std::vector<TablePart> parts() const;

  // Waits until all ranks of the set are done with the table and their requests are done.
  // Collective.
  void close();

 private:
  struct State;
  Table() = default;
  friend Table open_table_in(std::shared_ptr<Runtime> runtime, int set_id,
                             const TableOptions& options);
  std::shared_ptr<State> state_;
};

}  // namespace rueda
