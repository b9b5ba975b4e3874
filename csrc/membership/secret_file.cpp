#include "membership/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "core/strings.h"
#include "core/unique_fd.h"

namespace rueda {

namespace {

constexpr auto white_space = " \t\r\n";

Expected<std::string> secret_in(const std::string& path) {
  const auto wrong = [&](const auto& why) {
    return Status(ErrorCode::initialization, str("RUEDA_SECRET_FILE=", path, " ", why));
  };
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat facts{};
  if (!fd || ::fstat(fd.get(), &facts) != 0) {
    return wrong(str("cannot be read: ", std::strerror(errno)));
  }
  if ((facts.st_mode & S_IROTH) != 0) return wrong("may be read by every user: chmod 600 it");
  std::array<char, 4096> text{};
  const auto count = ::read(fd.get(), text.data(), text.size());
  if (count < 0) return wrong(str("cannot be read: ", std::strerror(errno)));
  const std::string_view content(text.data(), static_cast<std::size_t>(count));
  const auto begin = content.find_first_not_of(white_space);
  if (begin == std::string_view::npos) return wrong("is empty");
  return std::string(content.substr(begin, content.find_last_not_of(white_space) + 1 - begin));
}

}  // namespace

Expected<Environment> with_secret_of_file(const Environment& environment) {
  const auto is_empty = [&](std::string_view name) {
    return environment(name).value_or("").empty();
  };
  if (is_empty("RUEDA_SECRET_FILE") || !is_empty("RUEDA_SECRET")) return environment;
  const auto secret = secret_in(*environment("RUEDA_SECRET_FILE"));
  if (!secret) return secret.status();
  return Environment([environment, secret = secret.value()](std::string_view name) {
    return name == "RUEDA_SECRET" ? std::optional<std::string>(secret) : environment(name);
  });
}

}  // namespace rueda
