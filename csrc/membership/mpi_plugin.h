// The only door to MPI: a shared object that is loaded when MPI is wanted and found, so that
// nothing else of Rueda depends on an MPI library.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/clock.h"
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

  // Initialises MPI with MPI_THREAD_MULTIPLE unless it is initialised already. MPI can be
  // initialised only once in the life of a process: after MPI_Finalize this fails.
  virtual Status initialize() = 0;
  // Finalises MPI if initialize() did initialise it and nobody has finalised it since. Waits for
  // the other ranks to do the same; for the end of the process, so that Rueda can be initialised
  // again before.
  virtual void finalize() = 0;
  // `action` runs inside MPI_Finalize, whoever calls it, in the caller's thread, while MPI still
  // works: the last moment to bring transports to rest. It replaces the action set before; an empty
  // one removes it.
  virtual void before_finalize(std::function<void()> action) = 0;

  // Over a duplicate of MPI_COMM_WORLD; after initialize(). Collective. ErrorCode::initialization
  // when the other ranks have not come by the deadline.
  virtual Expected<std::unique_ptr<Bootstrap>> make_bootstrap(Time deadline) = 0;
  // Over a duplicate of MPI_COMM_WORLD (collective). Fails, naming the thread level, where the
  // application initialised MPI with less than MPI_THREAD_MULTIPLE: the progress thread may then
  // not call MPI.
  [[nodiscard]] virtual Status can_make_transport() const = 0;
  virtual Expected<std::unique_ptr<Transport>> make_transport(Time deadline) = 0;
};

// The plug-in's only symbol. Returns the one plug-in of this process, or null where it was built
// for another `interface` than librueda.so's; `*built_for` is always set.
inline constexpr const char* mpi_plugin_interface = "6 of Rueda " RUEDA_VERSION;
inline constexpr const char* mpi_plugin_symbol = "rueda_mpi_plugin";
using MpiPluginEntry = MpiPlugin* (*)(const char* interface, const char** built_for);

// What load_mpi() found, for `rueda check`.
struct MpiLocation {
  std::string plugin;   // path of librueda_mpi.so
  std::string library;  // path of libmpi.so
  std::string version;
};

// Loads libmpi (one that the process has loaded already, else options.mpi_library, else the Python
// environment's lib, else the system's), then the plug-in beside librueda.so. Loaded once and never
// unloaded. The error says what was tried and what to do.
[[nodiscard]] Expected<MpiPlugin*> load_mpi(const Options& options);
// Valid after a successful load_mpi().
[[nodiscard]] const MpiLocation& mpi_location();
// Whether MPI is initialised, and not finalised, in this process. Loads nothing: without a libmpi
// in the process the answer is no.
[[nodiscard]] bool mpi_is_running();

}  // namespace rueda
