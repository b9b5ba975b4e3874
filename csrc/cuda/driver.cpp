#include "cuda/driver.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <type_traits>

#include "core/log.h"
#include "core/shared_library.h"
#include "core/strings.h"
#include "cuda/driver_table.h"

namespace rueda {

namespace {

namespace fs = std::filesystem;

constexpr auto library_name = "libcuda.so.1";
constexpr auto advice =
    "the CUDA driver could not be loaded. Install NVIDIA's driver; in a container, start it with "
    "access to the GPUs; or name the library (RUEDA_CUDA_LIBRARY=/path/to/libcuda.so.1).";

std::vector<LibraryCandidate> candidates_for(const Options& options) {
  if (!options.cuda_library.empty()) {
    std::error_code ignored;
    const fs::path given = options.cuda_library;
    const fs::path file = fs::is_directory(given, ignored) ? given / library_name : given;
    return {{file.string(), "RUEDA_CUDA_LIBRARY"}};
  }
  std::vector<LibraryCandidate> candidates{{library_name, "the system"}};
  // Where containers and WSL mount it, unknown to the dynamic linker.
  for (const auto* folder : {"/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"}) {
    add_if_exists(candidates, fs::path(folder) / library_name, folder);
  }
  return candidates;
}

template <class Function>
void look_up(const SharedLibrary& library, const char* name, Function& function,
             std::string& missing) {
  function = reinterpret_cast<Function>(library.find(name));
  if (function == nullptr) missing += str(missing.empty() ? "" : ", ", name);
}

Expected<std::unique_ptr<DriverTable>> resolve(const SharedLibrary& library) {
  auto table = std::make_unique<DriverTable>();
  std::string missing;
#define RUEDA_TEXT(name) #name
#define RUEDA_LOOK_UP(member, function) \
  look_up(library, RUEDA_TEXT(function), table->member, missing);
  RUEDA_DRIVER_FUNCTIONS(RUEDA_LOOK_UP)
#undef RUEDA_LOOK_UP
#undef RUEDA_TEXT
  if (missing.empty()) return table;
  return Status(ErrorCode::initialization,
                str("the CUDA driver lacks ", missing, ": it is older than CUDA ",
                    cuda_version_text(minimum_driver_version), ". Update NVIDIA's driver"));
}

Expected<std::unique_ptr<CudaDriver>> start(const SharedLibrary& library) {
  auto table = resolve(library);
  if (!table) return table.status();
  const std::string file = file_of(reinterpret_cast<const void*>((*table)->init));
  int version = 0;
  const CUresult asked = (*table)->driver_version(&version);
  auto driver = std::make_unique<CudaDriver>(std::move(*table), version, file);
  if (Status status = driver->check(asked, "cuDriverGetVersion"); !status.ok()) return status;
  if (version < minimum_driver_version) {
    return Status(
        ErrorCode::initialization,
        str("the CUDA driver ", file, " is for CUDA ", cuda_version_text(version), "; Rueda needs ",
            cuda_version_text(minimum_driver_version), " or newer: update NVIDIA's driver"));
  }
  if (Status status = driver->check(driver->functions().init(0), "cuInit"); !status.ok()) {
    return Status(ErrorCode::initialization, str("the CUDA driver ", file, " does not start"))
        .because(status);
  }
  return driver;
}

}  // namespace

std::string cuda_version_text(int version) {
  return str(version / 1000, ".", version % 1000 / 10);
}

CudaDriver::CudaDriver(std::unique_ptr<const DriverTable> functions, int version,
                       std::string library)
    : functions_(std::move(functions)), version_(version), library_(std::move(library)) {}

CudaDriver::~CudaDriver() = default;

Status CudaDriver::check(int code, std::string_view what) const {
  const auto result = static_cast<CUresult>(code);
  if (result == CUDA_SUCCESS) return {};
  const char* name = nullptr;
  const char* text = nullptr;
  functions_->get_error_name(result, &name);
  functions_->get_error_string(result, &text);
  const ErrorCode kind = result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_INVALID_DEVICE
                             ? ErrorCode::invalid_argument
                             : ErrorCode::transport;
  return Status(kind, str(what, " failed: ", name == nullptr ? "CUDA error " : name,
                          name == nullptr ? std::to_string(code) : "",
                          text == nullptr ? "" : str(" (", text, ")")));
}

Expected<int> CudaDriver::device_count() const {
  int count = 0;
  if (Status status = check(functions_->device_count(&count), "cuDeviceGetCount"); !status.ok())
    return status;
  return count;
}

Expected<const CudaDriver*> load_cuda(const Options& options) {
  static std::mutex mutex;
  // Never destroyed: threads that end communicators may outlive everything else.
  static auto& loaded = *new std::map<std::string, std::unique_ptr<CudaDriver>>;
  const std::lock_guard lock(mutex);
  const auto known = loaded.find(options.cuda_library);
  if (known != loaded.end()) return known->second.get();
  auto library = SharedLibrary::load(candidates_for(options), advice);
  if (!library) return library.status();
  auto driver = start(*library);
  if (!driver) return driver.status();
  log(LogLevel::debug, "CUDA driver: ", cuda_version_text((*driver)->version()), " at ",
      (*driver)->library());
  return loaded.emplace(options.cuda_library, std::move(*driver)).first->second.get();
}

}  // namespace rueda
