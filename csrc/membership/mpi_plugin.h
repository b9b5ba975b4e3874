// The only door to MPI: a shared object that is loaded when MPI is wanted and found, so that nothing
// else of Rueda depends on an MPI library.
#pragma once

#include <memory>
#include <string>

#include "core/options.h"
#include "core/status.h"
#include "transport/bootstrap.h"
#include "transport/transport.h"

namespace rueda {

// Implemented inside librueda_mpi.so (csrc/mpi/).
class MpiPlugin {
 public:
  virtual ~MpiPlugin() = default;

  // Of the library in use, e.g. "Open MPI v5.0.11".
  [[nodiscard]] virtual std::string version() const = 0;
  // Whether MPI_Init has been called in this process, by anyone; MPI_Finalize.
  [[nodiscard]] virtual bool initialized() const = 0;
  [[nodiscard]] virtual bool finalized() const = 0;

  // Initialises MPI with MPI_THREAD_MULTIPLE unless it is initialised already.
  virtual Status initialize() = 0;
  // Finalises MPI if initialize() did initialise it and nobody has finalised it since.
  virtual void finalize() = 0;

  // Over MPI_COMM_WORLD; after initialize().
  virtual std::unique_ptr<Bootstrap> make_bootstrap() = 0;
  // Over a duplicate of MPI_COMM_WORLD (collective). Fails, naming the thread level, where the application
  // initialised MPI with less than MPI_THREAD_MULTIPLE: the engine's thread may then not call MPI.
  [[nodiscard]] virtual Status can_make_transport() const = 0;
  virtual Expected<std::unique_ptr<Transport>> make_transport() = 0;
};

// What load_mpi() found, for `rueda check`.
struct MpiLocation {
  std::string plugin;   // path of librueda_mpi.so
  std::string library;  // path of libmpi.so
  std::string version;
};

// Loads libmpi (one that the process has loaded already, else options.mpi_library, else the Python environment's lib,
// else the system's), then the plug-in beside librueda.so. Loaded once and never unloaded. The error says
// what was tried and what to do.
[[nodiscard]] Expected<MpiPlugin*> load_mpi(const Options& options);
// Valid after a successful load_mpi().
[[nodiscard]] const MpiLocation& mpi_location();

}  // namespace rueda
