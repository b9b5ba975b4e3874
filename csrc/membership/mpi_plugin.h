// The only access to MPI: a shared object that is loaded if MPI is wanted and found, so that
// nothing else in Rueda depends on an MPI library.
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

// Implemented in librueda_mpi.so (csrc/mpi/).
class MpiPlugin {
 public:
  virtual ~MpiPlugin() = default;

  // Of the library in use, e.g. "Open MPI v5.0.11".
  [[nodiscard]] virtual std::string version() const = 0;
  // Whether anyone has called MPI_Init in this process; MPI_Finalize.
  [[nodiscard]] virtual bool initialized() const = 0;
  [[nodiscard]] virtual bool finalized() const = 0;

  // Initialises MPI with MPI_THREAD_MULTIPLE unless that has been done. MPI can be initialised only
  // once per process: after MPI_Finalize this fails.
  virtual Status initialize() = 0;
  // Finalises MPI if initialize() initialised it and nobody has finalised it since, unless MPI may
  // have lost ranks. Waits for the other ranks to do the same. Call at the end of the process, so
  // that Rueda can be initialised again until then.
  virtual void finalize() = 0;
  // Runs `action` inside MPI_Finalize, whoever calls that, in the caller's thread and while MPI
  // still works: the last chance to shut down transports. Replaces the previous action; an empty
  // one removes it.
  virtual void before_finalize(std::function<void()> action) = 0;

  // Over a duplicate of MPI_COMM_WORLD; call after initialize(). Collective.
  // ErrorCode::initialization if the other ranks have not arrived by the deadline.
  virtual Expected<std::unique_ptr<Bootstrap>> make_bootstrap(Time deadline) = 0;
  // Over a duplicate of MPI_COMM_WORLD (collective). Fails, naming the thread level, if the
  // application initialised MPI below MPI_THREAD_MULTIPLE, so that the progress thread may not call
  // MPI.
  [[nodiscard]] virtual Status can_make_transport() const = 0;
  virtual Expected<std::unique_ptr<Transport>> make_transport(Time deadline) = 0;
};

// The plug-in's only symbol. Returns this process's plug-in, or null if it was built for another
// `interface` than librueda.so's. Always sets `*built_for`.
inline constexpr const char* mpi_plugin_interface = "6 of Rueda " RUEDA_VERSION;
inline constexpr const char* mpi_plugin_symbol = "rueda_mpi_plugin";
using MpiPluginEntry = MpiPlugin* (*)(const char* interface, const char** built_for);

// What load_mpi() found, for `rueda check`.
struct MpiLocation {
  std::string plugin;   // path of librueda_mpi.so
  std::string library;  // path of libmpi.so
  std::string version;
};

// Loads libmpi (tries one already loaded, options.mpi_library, OPAL_PREFIX's lib, the Python
// environment's, the folders near librueda.so, then the system's), and then the plug-in next to
// librueda.so. Loaded once, never unloaded. The error says what was tried and what to do.
[[nodiscard]] Expected<MpiPlugin*> load_mpi(const Options& options);
// Valid after a successful load_mpi().
[[nodiscard]] const MpiLocation& mpi_location();
// Whether MPI is currently initialised in this process, and not finalised. Loads nothing: false if
// there is no libmpi in the process.
[[nodiscard]] bool mpi_is_running();

}  // namespace rueda
