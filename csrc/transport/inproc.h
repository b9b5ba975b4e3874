// Ranks that are threads of one process: for tests, and for the world of one rank.
#pragma once

#include <memory>
#include <string>

#include "transport/bootstrap.h"
#include "transport/control_lane.h"
#include "transport/transport.h"

namespace rueda {

struct InprocState;

// What the ranks share. Each rank takes one object of each kind; these may outlive the hub.
// Thread-safe, and so is the use of different ranks' objects at the same time.
class InprocHub {
 public:
  explicit InprocHub(int size);

  [[nodiscard]] int size() const;

  // Once per rank. The transport of a rank that died sends and receives nothing.
  [[nodiscard]] std::unique_ptr<Transport> make_transport(int rank);
  // Every rank is notified of the loss of every other, connected or not. Destroying a lane that was
  // not closed counts as death.
  [[nodiscard]] std::unique_ptr<ControlLane> make_control_lane(int rank);
  [[nodiscard]] std::unique_ptr<Bootstrap> make_bootstrap(int rank);

  // Simulates the death of `rank`: nothing comes from it or reaches it any more, its peers are
  // notified of its loss with `cause`, and it of the loss of all of them, as if its cable were cut.
  void kill(int rank, const std::string& cause = "connection closed without good-bye");

 private:
  std::shared_ptr<InprocState> state_;
};

}  // namespace rueda
