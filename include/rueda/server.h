// Tables: parameters that are divided over the ranks of a process set, which read them and add to
// them whenever they like, without the others' taking part. Each rank owns a part and serves it
// while its application computes; none is special. What asynchronous training stands on: Dean et
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

// One addition as the owner of the values does it.
struct UpdateArguments {
  std::span<float> values;
  float* state;           // what the rule keeps: kind k of values[i] is state[k * stride + i]
  std::ptrdiff_t stride;  // unused without state
  std::span<const float> delta;  // as many as values
  float factor;                  // what the delta is to be multiplied by
  std::span<const double> parameters;
};

// What an addition does to values. Rueda has
//   "sum"      values += factor * delta
//   "adagrad"  g = factor * delta; state += g^2; values -= rate * g / (sqrt(state) + epsilon),
//              with the parameters rate and epsilon (Duchi et al., JMLR 2011)
struct UpdateRule {
  void (*apply)(const UpdateArguments& update) = nullptr;
  int states = 0;                            // numbers kept for each value, 0 to begin with
  std::vector<std::string> parameters = {};  // their names
};

// A rule of the application's, on every rank before a table with it is opened. `apply` is called by
// Rueda's thread, on parts of a table one after the other; it must not throw, wait or call Rueda.
// Throws InvalidArgumentError for a name that is taken.
void register_update_rule(const std::string& name, UpdateRule rule);

// What one rank owns of a table, as a function sees it.
class ShardView {
 public:
  virtual ~ShardView() = default;
  // Elements that lie side by side, the first with this index; or one row, with its number.
  using Visitor = std::function<void(std::int64_t index, std::span<const float> values)>;
  // All elements; or all rows that were ever written or added to, in any order.
  virtual void visit(const Visitor& visitor) const = 0;
  [[nodiscard]] virtual bool has_rows() const = 0;
};

// What Table::call() runs at each owner. What it throws is raised where it was called. Rueda has
// "min", "max", "sum", "sum_of_squares" (each a double), "count" (of values, an int64), and "top"
// (takes an int64 k; k pairs of an int64 index and a float magnitude, the largest first).
using ShardFunction = std::function<std::vector<std::byte>(const ShardView& shard,
                                                           std::span<const std::byte> arguments)>;
// A function of the application's, on every rank before it is called; as register_update_rule().
void register_shard_function(const std::string& name, ShardFunction function);

// --- Tables -------------------------------------------------------------------------------------

// What a row has before anything was added to it: `value`, and with a spread a number of
// [-spread, spread) on top that follows from seed, row and column.
struct InitialRows {
  float value = 0;
  float spread = 0;
  std::uint64_t seed = 0;
};

enum class TableOrder : std::uint8_t {
  as_they_come,  // each addition counts by itself
  ring,  // one addition of each rank is a step: they are added up in the order in which the ring
         // adds up, and the sum counts as one addition: the bits of a ring allreduce
};

struct TableOptions {
  std::string name = {};   // no other open table of the set has it
  std::int64_t size = 0;   // of elements, zeros to begin with; 0 for a table of rows
  std::int64_t width = 0;  // of a table of rows: elements of each. Rows have any number from 0 on,
                           // and take memory once they are written or added to
  InitialRows initial = {};
  // Where the part of each rank of the set begins, and the end of the last: as many as ranks, and
  // one. Empty: as even as possible, earlier ranks have one more.
  std::vector<std::int64_t> bounds = {};
  std::string rule = "sum";
  std::vector<double> parameters = {};
  TableOrder order = TableOrder::as_they_come;  // of tables without rows
  // Each part is kept by the next rank of the set as well: an addition is done when both have it.
  bool replicated = false;
  ProcessSet process_set = {};
};

struct GetOptions {
  std::int64_t begin = 0;
  // Not before every rank has ticked so often, or has finished: what they added with these ticks is
  // in what comes. How stale values may be (Ho et al.): a rank that has ticked c times and asks for
  // c - s goes at most s + 1 steps ahead of any other.
  std::int64_t min_clock = 0;
};

struct AddOptions {
  std::int64_t begin = 0;
  float factor = 1;  // what the delta is multiplied by
  // The factor is divided by 1 + staleness: how many additions the owner has counted since this
  // rank last got values from it. Looked at and added in one. Jiang et al., "Heterogeneity-aware
  // distributed parameter servers", SIGMOD 2017 (DynSGD).
  bool by_staleness = false;
  bool ticks = false;  // this rank has done a step with it; for owners that it sends nothing, too
};

// What one rank holds when the world is left or broken; see Table::parts().
struct TablePart {
  std::int64_t begin = 0;  // of a table without rows
  std::vector<std::int64_t> rows = {};
  std::vector<float> values = {};
  std::uint64_t version = 0;  // additions counted
  int owner = 0;              // rank within the set
  // What the rule keeps: of a row all kinds side by side, of elements one kind after the other.
  std::vector<float> state = {};
};

// Collective over its process set: all ranks open it with the same options and close it. What else
// it does, each rank does for itself. The handles of get(), put() and add() complete when the
// owners have done it; memory must stay until then, as it is. What one rank asks of one table comes
// in its order; a get() that waits for a clock lets others pass. Any thread may call any function.
// One that was moved from may only be destroyed or assigned to.
class Table {
 public:
  // Throws MismatchError where ranks give other options, InvalidArgumentError for what makes no
  // sense or needs more memory than a host has, with the sizes; on every rank.
  explicit Table(const TableOptions& options);
  ~Table();
  Table(Table&&) noexcept;
  Table& operator=(Table&&) noexcept;

  [[nodiscard]] const TableOptions& options() const;
  [[nodiscard]] const std::vector<std::int64_t>& bounds() const;

  // Elements from options.begin on. What comes from one owner is of one moment: whole additions.
  Handle get(std::span<float> out, const GetOptions& options = {});
  Handle put(std::span<const float> values, std::int64_t begin = 0);
  Handle add(std::span<const float> delta, const AddOptions& options = {});

  // Of a table of rows: the rows' elements one after the other. `owners`: ranks within the set;
  // empty: owner_of(). A row's owner must always be the same. add() takes each row once.
  Handle get_rows(std::span<const std::int64_t> rows, std::span<float> out,
                  std::span<const int> owners = {}, const GetOptions& options = {});
  Handle put_rows(std::span<const std::int64_t> rows, std::span<const float> values,
                  std::span<const int> owners = {});
  Handle add_rows(std::span<const std::int64_t> rows, std::span<const float> delta,
                  std::span<const int> owners = {}, const AddOptions& options = {});
  [[nodiscard]] int owner_of(std::int64_t row) const;

  // What the rule keeps of `count` elements from `begin` on, or of rows, is this from now on, as
  // TablePart has it: for values that another table had.
  Handle put_state(std::span<const float> state, std::int64_t begin, std::int64_t count);
  Handle put_row_state(std::span<const std::int64_t> rows, std::span<const float> state,
                       std::span<const int> owners = {});

  // This rank has done a step; or all: nobody waits for it any more.
  Handle tick();
  Handle finish();
  // Its clock goes on from there, or begins anew. Where all ranks do so, between two barriers, they
  // go on as equals whatever their clocks have been.
  Handle restart(std::int64_t clock = 0);

  // Runs a function at each owner; the results by rank of the set.
  [[nodiscard]] std::vector<std::vector<std::byte>> call(const std::string& function,
                                                         std::span<const std::byte> arguments = {});

  // How often an addition of this rank met which staleness, in additions to one part; the last for
  // all that were staler.
  [[nodiscard]] std::vector<std::uint64_t> staleness() const;
  // Of each rank of the set: how many additions its part had when values of it last came here.
  [[nodiscard]] std::vector<std::uint64_t> seen() const;

  // Of each rank of the set: how many steps it has told this rank, the largest number where it has
  // finished.
  [[nodiscard]] std::vector<std::int64_t> clocks() const;

  // What this rank owns, and what it keeps for the previous rank. For a world that is broken or has
  // been left: nothing may change it meanwhile.
  [[nodiscard]] std::vector<TablePart> parts() const;

  // All ranks of the set have finished with it: what they have asked for is done. Collective.
  void close();

 private:
  struct State;
  Table() = default;
  friend Table open_table_in(std::shared_ptr<Runtime> runtime, int set_id,
                             const TableOptions& options);
  std::shared_ptr<State> state_;
};

}  // namespace rueda
