#include "mpi/plugin.h"

#include <mpi.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "core/strings.h"
#include "mpi/bootstrap.h"
#include "mpi/communicator.h"
#include "mpi/error.h"
#include "mpi/init_environment.h"
#include "mpi/tags.h"
#include "mpi/transport.h"

namespace rueda::mpi {

namespace {

// Whether Open MPI was started with ULFM. It then does not miss MPI_Finalize, which would wait for
// ever for a rank that has ended with an exit code of its own: MPI does not learn of that.
bool outlives_ranks() {
  const char* const enabled = std::getenv("OMPI_MCA_mpi_ft_enable");
  return enabled != nullptr && std::string_view(enabled) == "1";
}

// Set by the progress thread, taken by the thread that calls MPI_Finalize.
std::mutex action_mutex;
std::function<void()> finalize_action;

// MPI_Finalize deletes the attributes of MPI_COMM_SELF before anything else.
int on_finalize(MPI_Comm, int, void*, void*) {
  std::function<void()> action;
  {
    const std::lock_guard lock(action_mutex);
    action = std::exchange(finalize_action, {});
  }
  if (action) action();
  return MPI_SUCCESS;
}

int thread_level() {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  return level;
}

std::string_view name_of_level(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE: return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED: return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED: return "MPI_THREAD_SERIALIZED";
    case MPI_THREAD_MULTIPLE: return "MPI_THREAD_MULTIPLE";
    default: return "an unknown thread level";
  }
}

}  // namespace

std::string Plugin::version() const {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string_view whole(text.data(), static_cast<std::size_t>(length));
  return std::string(whole.substr(0, whole.find(',')));
}

bool Plugin::initialized() const {
  int flag = 0;
  MPI_Initialized(&flag);
  return flag != 0;
}

bool Plugin::finalized() const {
  return is_finalized();
}

Status Plugin::initialize() {
  if (finalized()) {
    return Status(ErrorCode::initialization,
                  "MPI has been finalised in this process and cannot be initialised again: call "
                  "init() before anyone calls MPI_Finalize");
  }
  return initialized() ? join_application() : start_mpi();
}

Status Plugin::start_mpi() {
  const InitEnvironment environment;
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  if (code != MPI_SUCCESS) {
    return failure(code, "MPI_Init_thread", -1, ErrorCode::initialization);
  }
  owned_ = true;
  // A peer's death must be reported as an error.
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  return {};
}

Status Plugin::join_application() const {
  const int level = thread_level();
  int is_main = 0;
  MPI_Is_thread_main(&is_main);
  if (level >= MPI_THREAD_SERIALIZED || is_main != 0) return {};
  return Status(ErrorCode::initialization,
                str("the application initialised MPI with ", name_of_level(level),
                    ", so that only the thread that did may call it: call init() in that thread"));
}

void Plugin::finalize() {
  if (owned_ && !finalized() && !outlives_ranks()) MPI_Finalize();
}

void Plugin::before_finalize(std::function<void()> action) {
  {
    const std::lock_guard lock(action_mutex);
    finalize_action = std::move(action);
  }
  if (watching_ || !initialized() || finalized()) return;
  int key = MPI_KEYVAL_INVALID;
  if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_finalize, &key, nullptr) != MPI_SUCCESS)
    return;
  watching_ = MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr) == MPI_SUCCESS;
}

Status Plugin::check_running() const {
  if (!initialized()) return Status(ErrorCode::internal, "MPI is used before it is initialised");
  if (finalized()) {
    return Status(ErrorCode::initialization, "MPI has been finalised in this process");
  }
  return {};
}

Expected<std::unique_ptr<Bootstrap>> Plugin::make_bootstrap(Time deadline) {
  if (Status status = check_running(); !status.ok()) return status;
  auto communicator = Communicator::duplicate_world(deadline, "bootstrap");
  if (!communicator) return communicator.status();
  return std::unique_ptr<Bootstrap>(std::make_unique<MpiBootstrap>(*std::move(communicator)));
}

Status Plugin::can_make_transport() const {
  if (Status status = check_running(); !status.ok()) return status;
  if (const int level = thread_level(); level < MPI_THREAD_MULTIPLE) {
    const std::string who = owned_ ? str(version(), " offers no more than ")
                                   : std::string("the application initialised MPI with ");
    return Status(ErrorCode::unsupported,
                  str(who, name_of_level(level),
                      ", but Rueda's thread may call MPI only with "
                      "MPI_THREAD_MULTIPLE: ask for that level in MPI_Init_thread, or let "
                      "Rueda's init() initialise MPI"));
  }
  void* value = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &found);
  const int largest = found != 0 ? *static_cast<int*>(value) : 32767;
  if (static_cast<std::uint64_t>(largest) < tag_limit) {
    return Status(ErrorCode::unsupported, str(version(), " allows tags up to ", largest,
                                              " only (MPI_TAG_UB); Rueda needs ", tag_limit));
  }
  return {};
}

Expected<std::unique_ptr<Transport>> Plugin::make_transport(Time deadline) {
  if (Status status = can_make_transport(); !status.ok()) return status;
  auto communicator = Communicator::duplicate_world(deadline, "transport");
  if (!communicator) return communicator.status();
  return std::unique_ptr<Transport>(std::make_unique<MpiTransport>(*std::move(communicator)));
}

}  // namespace rueda::mpi

extern "C" [[gnu::visibility("default")]] rueda::MpiPlugin* rueda_mpi_plugin(
    const char* interface, const char** built_for) {
  *built_for = rueda::mpi_plugin_interface;
  if (std::strcmp(interface, rueda::mpi_plugin_interface) != 0) return nullptr;
  // Never destroyed: transports may outlive main().
  static auto* plugin = new rueda::mpi::Plugin;
  return plugin;
}
