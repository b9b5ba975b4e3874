#include "backend/nccl/library.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/log.h"
#include "core/shared_library.h"
#include "core/strings.h"

namespace rueda {

namespace {

namespace fs = std::filesystem;

constexpr auto library_name = "libnccl.so.2";
constexpr auto advice =
    "NCCL could not be loaded. Install it (pip install nvidia-nccl-cu13, or nvidia-nccl-cu12 for a "
    "driver for CUDA 12; torch with CUDA brings it) or name it "
    "(RUEDA_NCCL_LIBRARY=/path/to/libnccl.so.2).";

std::vector<LibraryCandidate> candidates_for(const Options& options) {
  if (!options.nccl_library.empty()) {
    std::error_code ignored;
    const fs::path given = options.nccl_library;
    const fs::path file = fs::is_directory(given, ignored) ? given / library_name : given;
    return {{file.string(), "RUEDA_NCCL_LIBRARY"}};
  }
  std::vector<LibraryCandidate> candidates;
  if (dlopen(library_name, RTLD_NOW | RTLD_NOLOAD) != nullptr)
    candidates.push_back({library_name, "loaded by this process"});
  for (const fs::path& folder : site_packages(process_environment()))
    add_if_exists(candidates, folder / "nvidia/nccl/lib" / library_name, folder.string());
  candidates.push_back({library_name, "the system"});
  return candidates;
}

Expected<nccl::Functions> resolve(const SharedLibrary& library) {
  nccl::Functions functions;
  std::string missing;
#define RUEDA_REQUIRE(member, function, ...)                                                     \
  functions.member = reinterpret_cast<std::add_pointer_t<__VA_ARGS__>>(library.find(#function)); \
  if (functions.member == nullptr) missing += str(missing.empty() ? "" : ", ", #function);
  using namespace nccl;
  RUEDA_NCCL_FUNCTIONS(RUEDA_REQUIRE)
#undef RUEDA_REQUIRE
  if (missing.empty()) return functions;
  return Status(ErrorCode::initialization, str("lacks ", missing));
}

Expected<std::unique_ptr<NcclLibrary>> open_library(const Options& options) {
  auto library = SharedLibrary::load(candidates_for(options), advice);
  if (!library) return library.status();
  auto* get_version = reinterpret_cast<nccl::Result (*)(int*)>(library->find("ncclGetVersion"));
  const std::string file = file_of(reinterpret_cast<const void*>(get_version));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != nccl::success) {
    return Status(ErrorCode::initialization,
                  str(options.nccl_library, " is not NCCL: it does not report its version"));
  }
  if (version < minimum_nccl_version) {
    return Status(ErrorCode::initialization,
                  str("NCCL ", nccl_version_text(version), " at ", file,
                      " is too old: Rueda needs ", nccl_version_text(minimum_nccl_version),
                      " or newer. Update it (pip install -U nvidia-nccl-cu13)"));
  }
  auto functions = resolve(*library);
  if (!functions) {
    return Status(ErrorCode::initialization,
                  str("NCCL ", nccl_version_text(version), " at ", file, " cannot be used: it ",
                      functions.status().message()));
  }
  return std::make_unique<NcclLibrary>(*functions, version, file);
}

ErrorCode code_of(nccl::Result result) {
  switch (result) {
    case nccl::invalid_argument:
    case nccl::invalid_usage: return ErrorCode::invalid_argument;
    case nccl::remote_error: return ErrorCode::peer_lost;
    default: return ErrorCode::transport;
  }
}

}  // namespace

std::string nccl_version_text(int version) {
  return str(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

NcclLibrary::NcclLibrary(const nccl::Functions& functions, int version, std::string file)
    : functions_(functions), version_(version), file_(std::move(file)) {}

Status NcclLibrary::check(nccl::Result result, std::string_view what,
                          nccl::Comm communicator) const {
  if (result == nccl::success || result == nccl::in_progress) return {};
  const char* text = functions_.get_error_string(result);
  const char* last = functions_.get_last_error(communicator);
  const bool has_last = last != nullptr && *last != '\0';
  return Status(code_of(result), str(what, " failed: ", text == nullptr ? "unknown error" : text,
                                     has_last ? ": " : "", has_last ? last : ""));
}

Expected<nccl::UniqueId> NcclLibrary::unique_id() const {
  nccl::UniqueId id{};
  if (Status status = check(functions_.get_unique_id(&id), "ncclGetUniqueId"); !status.ok())
    return status;
  return id;
}

Expected<const NcclLibrary*> load_nccl(const Options& options) {
  static std::mutex mutex;
  // Never destroyed: threads that end communicators may outlive everything else.
  static auto& loaded = *new std::map<std::string, std::unique_ptr<NcclLibrary>>;
  const std::lock_guard lock(mutex);
  const auto known = loaded.find(options.nccl_library);
  if (known != loaded.end()) return known->second.get();
  auto library = open_library(options);
  if (!library) return library.status();
  log(LogLevel::debug, "NCCL ", nccl_version_text((*library)->version()), " at ",
      (*library)->file());
  return loaded.emplace(options.nccl_library, std::move(*library)).first->second.get();
}

}  // namespace rueda
