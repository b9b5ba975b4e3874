#include "membership/host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "core/strings.h"

namespace rueda {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
  return name.data();
}

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat space{};
  if (::stat("/proc/self/ns/net", &space) != 0) return str(boot, "/", host_name());
  return str(boot, "/", space.st_dev, ":", space.st_ino);
}

}  // namespace rueda
