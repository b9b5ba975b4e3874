#include "mpi/init_environment.h"

#include <dlfcn.h>
#include <mpi.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace rueda::mpi {

namespace {

constexpr const char* btl_variable = "OMPI_MCA_btl";

constexpr const char* no_folder = "/dev/null";

// `others`: bits of the folder's mode.
bool may_write(mode_t others, const char* folder) {
  struct stat facts{};
  return ::stat(folder, &facts) == 0 && (facts.st_mode & others) != 0;
}

// Open MPI 5.0 ends the process in MPI_Init if HOME is unset, as under init systems and `env -i`.
// It loads the plug-ins named in files below HOME. So if the user has no home, or one that others
// may write to, HOME is something that cannot be a folder.
std::string users_home() {
  const passwd* user = getpwuid(geteuid());
  const bool has_home =
      user != nullptr && user->pw_dir != nullptr && !may_write(S_IWGRP | S_IWOTH, user->pw_dir);
  return has_home ? user->pw_dir : no_folder;
}

// What HOME has to be for MPI; empty if it may stay what it is. The user who sets it decides
// whether their group is trusted, but that anybody may write there, as with HOME=/tmp, is an
// oversight.
std::string home_for_mpi(const char* home) {
  if (home == nullptr) return users_home();
  return may_write(S_IWOTH, home) ? no_folder : "";
}

// Where MPI is installed; empty if unknown.
std::string prefix_of_mpi() {
  if (const char* moved = std::getenv("OPAL_PREFIX")) return moved;
  Dl_info library{};
  if (dladdr(reinterpret_cast<const void*>(&MPI_Init_thread), &library) == 0) return {};
  return std::filesystem::path(library.dli_fname).parent_path().parent_path();
}

// Whether a file of Open MPI's parameters, lines of "name = value", sets this one. One that cannot
// be read sets none.
bool sets_parameter(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const auto begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos || line.compare(begin, name.size(), name) != 0) continue;
    const auto next = line.find_first_not_of(" \t", begin + name.size());
    if (next != std::string::npos && line[next] == '=') return true;
  }
  return false;
}

bool user_has_chosen_btl() {
  if (std::getenv(btl_variable) != nullptr) return true;  // mpirun's --mca comes here as well
  if (std::getenv("OMPI_MCA_mca_base_param_files") != nullptr) return true;  // maybe in one of them
  const char* const home = std::getenv("HOME");
  return (home != nullptr &&
          sets_parameter(std::string(home) + "/.openmpi/mca-params.conf", "btl")) ||
         sets_parameter(prefix_of_mpi() + "/etc/openmpi-mca-params.conf", "btl") ||
         sets_parameter("/etc/openmpi/openmpi-mca-params.conf", "btl");
}

}  // namespace

// Open MPI's component "ofi" sleeps for a second in MPI_Init where it finds nothing to do. It
// carries one-sided communication only, of which Rueda has none.
InitEnvironment::InitEnvironment() {
  const char* const home = std::getenv("HOME");
  if (const std::string other = home_for_mpi(home); !other.empty()) {
    if (home != nullptr) home_ = home;
    has_set_home_ = setenv("HOME", other.c_str(), 1) == 0;
  }
  if (!user_has_chosen_btl()) has_set_btl_ = setenv(btl_variable, "^ofi", 0) == 0;
}

InitEnvironment::~InitEnvironment() {
  if (has_set_home_ && home_) setenv("HOME", home_->c_str(), 1);
  if (has_set_home_ && !home_) unsetenv("HOME");
  if (has_set_btl_) unsetenv(btl_variable);
}

}  // namespace rueda::mpi
