// What the public C++ API throws. Python maps each class to an exception of the same name.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rueda/abi.h"

namespace rueda {

enum class ErrorCode : std::uint8_t {
  ok,
  invalid_argument,  // a value that can never work, found before anything was sent
  unsupported,       // a combination that is refused, such as the average of booleans
  mismatch,          // ranks disagree about a tensor
  duplicate_name,    // a second submission under a name that is still pending
  stalled,           // some ranks never submitted the tensor
  timeout,           // a transfer or a handshake made no progress before its deadline
  peer_lost,         // a rank died or raised
  shutdown,          // this rank or a peer has shut down
  not_initialized,   // rueda::init() has not been called
  initialization,    // the world could not be formed
  transport,         // bytes could not be moved
  internal,          // no memory is left, or a bug in Rueda
};

[[nodiscard]] std::string_view name_of(ErrorCode code);

// The reason, where programs treat errors with the same code differently.
enum class ErrorReason : std::uint8_t {
  unspecified,
  deadline,         // timeout: the caller's own time limit, which the text names, has passed
  gradient_misfit,  // refuse(): a gradient no longer fits its bucket; all ranks can go on without
                    // the bucket
  not_finite,       // a compressed allreduce met a NaN, an infinity or a value its codec can't hold
  ended,            // peer_lost: the process has certainly ended
  refused,          // peer_lost: its host, or a firewall in front of it, says that nobody listens
  unreachable,      // peer_lost: nothing answers; the process may still be alive
};

// "gradient_misfit"; empty where unspecified.
[[nodiscard]] std::string_view name_of(ErrorReason reason);

// What the text of an error says, in fields for programs to act on.
struct ErrorDetails {
  ErrorReason reason = ErrorReason::unspecified;
  std::string tensor = {};  // the name of the operation that failed, or of the first of its batch
  // mismatch: what the ranks disagree about ("shape", "dtype", "op", "operation", "root rank", ...)
  // and its values as the text shows them; the value that most ranks have comes first.
  std::string field = {};
  std::vector<std::string> values = {};

  [[nodiscard]] bool operator==(const ErrorDetails&) const = default;
};

// Base class of everything that Rueda throws.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, int peer = -1, ErrorDetails details = {})
      : std::runtime_error(message),
        code_(code),
        peer_(peer),
        details_(std::make_shared<const ErrorDetails>(std::move(details))) {}

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  // The rank that caused the error, or -1 where no single rank did.
  [[nodiscard]] int peer() const noexcept { return peer_; }
  [[nodiscard]] const ErrorDetails& details() const noexcept { return *details_; }

 private:
  ErrorCode code_;
  int peer_;
  std::shared_ptr<const ErrorDetails> details_;  // shared, so that copies throw nothing
};

// One class per code, so that callers can catch what they can handle.
template <ErrorCode error_code>
class ErrorOf : public Error {
 public:
  explicit ErrorOf(const std::string& message, int peer = -1, ErrorDetails details = {})
      : Error(error_code, message, peer, std::move(details)) {}
};

using InvalidArgumentError = ErrorOf<ErrorCode::invalid_argument>;
using UnsupportedError = ErrorOf<ErrorCode::unsupported>;
using MismatchError = ErrorOf<ErrorCode::mismatch>;
using DuplicateNameError = ErrorOf<ErrorCode::duplicate_name>;
using StalledError = ErrorOf<ErrorCode::stalled>;
using TimeoutError = ErrorOf<ErrorCode::timeout>;
using PeerLostError = ErrorOf<ErrorCode::peer_lost>;
using ShutdownError = ErrorOf<ErrorCode::shutdown>;
using NotInitializedError = ErrorOf<ErrorCode::not_initialized>;
using InitializationError = ErrorOf<ErrorCode::initialization>;
using TransportError = ErrorOf<ErrorCode::transport>;
using InternalError = ErrorOf<ErrorCode::internal>;

}  // namespace rueda
