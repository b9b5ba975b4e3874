#include "membership/bootstrap_pmi.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <map>
#include <utility>

#include "core/sha256.h"
#include "core/strings.h"
#include "core/wait_fd.h"

namespace rueda {

namespace {

// For questions that the process manager answers immediately.
constexpr auto pmi_answer_timeout = std::chrono::seconds(30);
constexpr std::size_t max_pmi_line = 1 << 16;
constexpr std::size_t key_digits = 32;

Status pmi_failed(std::string text) {
  return Status(ErrorCode::initialization, std::move(text));
}

// A SIGPIPE raised by this thread arrives immediately and is consumed; one already pending stays.
class SignalPipeBlocked {
 public:
  SignalPipeBlocked() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t waiting;
    sigpending(&waiting);
    was_there_ = sigismember(&waiting, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SignalPipeBlocked() {
    const int error = errno;
    const timespec none{};
    if (!was_there_) sigtimedwait(&pipe_, nullptr, &none);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  SignalPipeBlocked(const SignalPipeBlocked&) = delete;
  SignalPipeBlocked& operator=(const SignalPipeBlocked&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool was_there_ = false;
};

int leading_number(const std::string& text) {
  int value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::string from_hexadecimal(const std::string& digits) {
  std::string bytes;
  for (std::size_t at = 0; at + 1 < digits.size(); at += 2) {
    unsigned value = 0;
    std::from_chars(digits.data() + at, digits.data() + at + 2, value, 16);
    bytes += static_cast<char>(value);
  }
  return bytes;
}

using Answer = std::map<std::string, std::string>;

// Parses a line's words "name=value".
Answer pmi_words(const std::string& line) {
  Answer words;
  std::size_t begin = 0;
  while (begin < line.size()) {
    const std::size_t end = std::min(line.find(' ', begin), line.size());
    const std::size_t equals = line.find('=', begin);
    if (equals < end) {
      words[line.substr(begin, equals - begin)] = line.substr(equals + 1, end - equals - 1);
    }
    begin = end + 1;
  }
  return words;
}

std::string word_of(const Answer& answer, const std::string& name) {
  const auto found = answer.find(name);
  return found == answer.end() ? std::string() : found->second;
}

// Avoids SIGPIPE, which would end the process, if the process manager is gone.
ssize_t send_quietly(int fd, std::string_view text) {
  const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
  if (sent >= 0 || errno != ENOTSOCK) return sent;
  const SignalPipeBlocked blocked;
  return ::write(fd, text.data(), text.size());
}

// A child may have inherited the variable that tells the number, but not the descriptor, whose
// number then stands for something else, such as a file that must not be written to.
bool may_lead_to_manager(int fd) {
  struct stat is{};
  return ::fstat(fd, &is) == 0 && (S_ISSOCK(is.st_mode) || S_ISFIFO(is.st_mode));
}

// The process's conversation with its process manager, which allows only one per process: it begins
// with the first world and ends with the process.
class PmiConversation {
 public:
  static PmiConversation& instance() {
    static PmiConversation conversation;
    return conversation;
  }
  ~PmiConversation() {
    if (process_ != ::getpid() || is_lost_) return;  // not begun, or begun by its parent
    constexpr std::string_view line = "cmd=finalize\n";
    if (send_quietly(fd_, line) < 0) return;
    pollfd answer{fd_, POLLIN, 0};
    ::poll(&answer, 1, 1000);
  }
  PmiConversation(const PmiConversation&) = delete;
  PmiConversation& operator=(const PmiConversation&) = delete;

  // After the first call, only counts.
  Status begin(int fd, Time deadline) {
    ++worlds_;
    if (process_ == ::getpid()) return {};
    if (!may_lead_to_manager(fd)) {
      return pmi_failed(str("PMI_FD=", fd,
                            " is not a connection to a process manager: this process was started "
                            "by one of its ranks, which passed on the variable but not the "
                            "connection; start it without PMI_FD"));
    }
    fd_ = fd;
    const auto hello = ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", deadline);
    if (!hello) return hello.status();
    const auto limits = ask("cmd=get_maxes", "maxes", deadline);
    if (!limits) return limits.status();
    const auto space = ask("cmd=get_my_kvsname", "my_kvsname", deadline);
    if (!space) return space.status();
    space_ = word_of(*space, "kvsname");
    const int longest = leading_number(word_of(*limits, "vallen_max"));
    if (space_.empty() || longest < 32 || leading_number(word_of(*limits, "keylen_max")) < 60) {
      return lose("the PMI process manager reports unusable limits");
    }
    piece_ = static_cast<std::size_t>(longest - 16) / 2;
    process_ = ::getpid();
    return {};
  }

  [[nodiscard]] const std::string& space() const { return space_; }
  [[nodiscard]] std::size_t piece() const { return piece_; }  // bytes of a value in one put
  [[nodiscard]] int worlds() const { return worlds_; }

  // Sends a line and returns the answer.
  Expected<Answer> ask(const std::string& line, std::string_view expected, Time deadline) {
    if (is_lost_) return pmi_failed("contact with the PMI process manager was lost before");
    std::string rest = line + "\n";
    while (!rest.empty()) {
      if (!becomes_writable(fd_, deadline)) {
        return lose("the PMI process manager accepts no more data");
      }
      const auto written = send_quietly(fd_, rest);
      if (written < 0 && errno != EINTR && errno != EAGAIN) {
        return lose("the PMI process manager cannot be reached");
      }
      if (written > 0) rest.erase(0, static_cast<std::size_t>(written));
    }
    const auto text = next_line(deadline);
    if (!text) return text.status();
    Answer answer = pmi_words(*text);
    const std::string verb = line.substr(4, line.find(' ') - 4);
    if (word_of(answer, "cmd") != expected) {
      return lose(
          str("the PMI process manager answers '", verb, "' with '", text->substr(0, 80), "'"));
    }
    if (const std::string code = word_of(answer, "rc"); !code.empty() && code != "0") {
      return pmi_failed(
          str("the PMI process manager refuses '", verb, "': ", word_of(answer, "msg")));
    }
    return answer;
  }

 private:
  PmiConversation() = default;

  Status lose(std::string why) {
    is_lost_ = true;
    return pmi_failed(std::move(why));
  }

  Expected<std::string> next_line(Time deadline) {
    std::size_t end = 0;
    while ((end = received_.find('\n')) == std::string::npos) {
      if (Clock::now() >= deadline || received_.size() > max_pmi_line) {
        return lose("not all ranks arrived, or the PMI process manager did not answer, in time");
      }
      if (!wait_readable(fd_, deadline)) continue;
      std::array<char, 4096> piece{};
      const auto count = ::read(fd_, piece.data(), piece.size());
      if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) {
        return lose("the PMI process manager is gone");
      }
      if (count > 0) received_.append(piece.data(), static_cast<std::size_t>(count));
    }
    std::string line = received_.substr(0, end);
    received_.erase(0, end + 1);
    return line;
  }

  int fd_ = -1;
  pid_t process_ = -1;  // the process that began it
  int worlds_ = 0;      // keys can be written once per job: each world has its own
  std::string space_;
  std::size_t piece_ = 0;
  std::string received_;
  bool is_lost_ = false;
};

class PmiBootstrap final : public Bootstrap {
 public:
  PmiBootstrap(PmiConversation& conversation, int rank, int size)
      : pmi_(conversation), rank_(rank), size_(size), world_(conversation.worlds()) {}

  std::string_view name() const override { return "pmi"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Status put(const std::string& key, const std::string& value) override {
    const std::size_t count = value.size() / pmi_.piece() + 1;
    for (std::size_t index = 0; index < count; ++index) {
      const std::string piece = value.substr(index * pmi_.piece(), pmi_.piece());
      const auto done = pmi_.ask(str("cmd=put kvsname=", pmi_.space(), " key=", name_of(key, index),
                                     " value=", count, ":", hexadecimal(bytes_of(piece))),
                                 "put_result", Clock::now() + pmi_answer_timeout);
      if (!done) return done.status();
    }
    return {};
  }

  Expected<std::string> get(const std::string& key) override {
    std::string value;
    std::size_t count = 1;
    for (std::size_t index = 0; index < count; ++index) {
      const auto found =
          pmi_.ask(str("cmd=get kvsname=", pmi_.space(), " key=", name_of(key, index)),
                   "get_result", Clock::now() + pmi_answer_timeout);
      if (!found) return found.status();
      const std::string text = word_of(*found, "value");
      const auto colon = text.find(':');
      if (colon == std::string::npos || leading_number(text) < 1) {
        return pmi_failed(str("the PMI process manager has lost the value of '", key, "'"));
      }
      count = static_cast<std::size_t>(leading_number(text));
      value += from_hexadecimal(text.substr(colon + 1));
    }
    return value;
  }

  Status barrier(Time deadline) override {
    return pmi_.ask("cmd=barrier_in", "barrier_out", deadline).status();
  }

 private:
  std::string name_of(const std::string& key, std::size_t piece) const {
    const std::string digest = hexadecimal(sha256(bytes_of(key))).substr(0, key_digits);
    return str("rueda-", world_, "-", digest, "-", piece);
  }

  PmiConversation& pmi_;
  const int rank_;
  const int size_;
  const int world_;
};

int descriptor_of(const Environment& environment) {
  return leading_number(environment("PMI_FD").value_or(""));
}

}  // namespace

bool offers_pmi(const Launch& launch, const Environment& environment) {
  return launch.kind == LaunchKind::mpi && environment("PMI_RANK").has_value() &&
         descriptor_of(environment) >= 0;
}

Expected<std::unique_ptr<Bootstrap>> open_pmi(const Launch& launch, const Environment& environment,
                                              Time deadline) {
  PmiConversation& conversation = PmiConversation::instance();
  if (Status status = conversation.begin(descriptor_of(environment), deadline); !status.ok()) {
    return Status(ErrorCode::initialization,
                  str(launch.launcher, " started ", launch.size, " ranks (", launch.evidence,
                      "), but Rueda cannot reach them through PMI; start with `rueda run` or, "
                      "with an Open MPI, mpirun"))
        .because(status);
  }
  return std::unique_ptr<Bootstrap>(
      std::make_unique<PmiBootstrap>(conversation, launch.rank, launch.size));
}

}  // namespace rueda
