// What takes part in the benchmark: a library that can do collectives, or a loop that shows what
// the machine could do at best.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "shared_area.h"
#include "work.h"

namespace rueda_bench {

// A call that this contender does not have. Every rank of the group must find out alike.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// One collective on buffers of its own, ready to be called again and again.
class Call {
 public:
  Call() = default;
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // What is timed: returns when the result of this rank is there.
  virtual void run() = 0;

  [[nodiscard]] std::byte* input() const { return input_.get(); }
  // The result of the last run().
  [[nodiscard]] const std::byte* output() const { return output_.get(); }
  // Why run() could not do it after all, found out by some ranks only; else empty.
  [[nodiscard]] virtual std::string refusal() const { return {}; }
  // How many of the group's ranks take part, from rank 0 on; the others only answer.
  [[nodiscard]] virtual int participants(int ranks) const { return ranks; }
  // How many steps, one after the other, one run() consists of.
  [[nodiscard]] virtual int steps() const { return 1; }

 protected:
  std::shared_ptr<std::byte[]> input_;
  std::shared_ptr<std::byte[]> output_;  // the input where the call is in place
};

class Contender {
 public:
  Contender() = default;
  virtual ~Contender() = default;
  Contender(const Contender&) = delete;
  Contender& operator=(const Contender&) = delete;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  // Versions and the like, for the head of the report: one line each.
  [[nodiscard]] virtual std::map<std::string, std::string> facts() const { return {}; }
  // The group has formed: the memory that its workers share, and the processors it may use.
  virtual void join(const SharedArea& /*area*/, const std::vector<int>& /*processors*/) {}
  // `work` outlives the call. Throws Unsupported.
  [[nodiscard]] virtual std::unique_ptr<Call> prepare(const Work& work) = 0;
};

// Memory as any program has it: 64-byte aligned, not initialised.
[[nodiscard]] std::shared_ptr<std::byte[]> private_memory(std::size_t bytes);

}  // namespace rueda_bench
