// Work in progress, which others advance, wait for and query. A ring collective, one in the memory
// of a host, one on a GPU and compositions of these are each an Operation.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "core/status.h"

namespace rueda {

class DeviceEvent;

// One collective in progress. Its buffers must outlive it.
class Operation {
 public:
  virtual ~Operation() = default;

  // Makes as much progress as possible without blocking; returns whether anything moved.
  virtual bool advance() = 0;
  [[nodiscard]] virtual bool done() const = 0;
  // Meaningful once done.
  [[nodiscard]] virtual const Status& status() const = 0;
  // World ranks with which transfers are outstanding, for the message of a timeout.
  [[nodiscard]] virtual std::vector<int> awaited() const = 0;

  // Whether its bytes go through the transport, which then has to be driven and slept upon; other
  // operations are woken through shared memory.
  [[nodiscard]] virtual bool uses_transport() const { return true; }

  // Whether other work of this rank has to come first, however long that takes.
  [[nodiscard]] virtual bool waits_for_its_turn() const { return false; }

  // Requires polling: no wake-up announces progress.
  [[nodiscard]] virtual bool must_be_polled() const { return false; }

  // Whether it failed in the same way on all ranks, before any of them touched a tensor, so that
  // the world can go on.
  [[nodiscard]] virtual bool failed_everywhere() const { return false; }

  // An error if the result of one piece of a batch that succeeded as a whole is useless, in the
  // same way on all ranks. Meaningful once done.
  [[nodiscard]] virtual Status status_of_piece(std::size_t /*piece*/) const { return {}; }

  // On a GPU: what streams wait for. Meaningful once done, i.e. once everything is enqueued.
  [[nodiscard]] virtual std::shared_ptr<DeviceEvent> finished() const { return nullptr; }

  // Its phases with their times, for the timeline; in order, meaningful once done.
  struct Phase {
    std::string_view name;
    Time begin;
    Time end;
  };
  [[nodiscard]] virtual std::vector<Phase> phases() const { return {}; }
};

}  // namespace rueda
