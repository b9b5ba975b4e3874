// Bootstrap for the ranks of MPI_COMM_WORLD, over MPI's own collectives.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/clock.h"
#include "core/status.h"
#include "mpi/communicator.h"
#include "transport/bootstrap.h"

namespace rueda::mpi {

// put() collects entries, barrier() exchanges those that all ranks collected since the last
// barrier, get() looks them up.
class MpiBootstrap final : public Bootstrap {
 public:
  explicit MpiBootstrap(Communicator communicator) : communicator_(std::move(communicator)) {}

  [[nodiscard]] std::string_view name() const override { return "mpi"; }
  [[nodiscard]] int rank() const override { return communicator_.rank(); }
  [[nodiscard]] int size() const override { return communicator_.size(); }

  Status put(const std::string& key, const std::string& value) override;
  Expected<std::string> get(const std::string& key) override;
  Status barrier(Time deadline) override;

 private:
  struct Gathering;
  Status gather(Gathering& gathering, Time deadline);
  Status store(const Gathering& gathering);

  Communicator communicator_;
  std::map<std::string, std::string> pending_;
  std::map<std::string, std::string> known_;
  Status broken_;  // from the first barrier that failed: MPI may still be busy with it
};

}  // namespace rueda::mpi
