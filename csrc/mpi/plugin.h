// The plug-in: MPI's life cycle in this process, and the objects created on top of it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "membership/mpi_plugin.h"

namespace rueda::mpi {

class Plugin final : public MpiPlugin {
 public:
  [[nodiscard]] std::string version() const override;
  [[nodiscard]] bool initialized() const override;
  [[nodiscard]] bool finalized() const override;

  Status initialize() override;
  void finalize() override;
  void before_finalize(std::function<void()> action) override;

  Expected<std::unique_ptr<Bootstrap>> make_bootstrap(Time deadline) override;
  [[nodiscard]] Status can_make_transport() const override;
  Expected<std::unique_ptr<Transport>> make_transport(Time deadline) override;

 private:
  Status start_mpi();
  Status join_application() const;
  [[nodiscard]] Status check_running() const;

  bool owned_ = false;     // initialize() called MPI_Init_thread
  bool watching_ = false;  // MPI_Finalize will call back
};

}  // namespace rueda::mpi
