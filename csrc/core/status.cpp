#include "core/status.h"

#include <vector>

#include "rueda/types.h"

namespace rueda {

namespace {

template <ErrorCode... codes>
[[noreturn]] void throw_matching(ErrorCode code, const std::string& message, int peer) {
  ((code == codes ? throw ErrorOf<codes>(message, peer) : void()), ...);
  throw Error(code, message, peer);
}

}  // namespace

std::string_view name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::ok: return "ok";
    case ErrorCode::invalid_argument: return "invalid argument";
    case ErrorCode::unsupported: return "unsupported";
    case ErrorCode::mismatch: return "mismatch";
    case ErrorCode::duplicate_name: return "duplicate name";
    case ErrorCode::stalled: return "stalled";
    case ErrorCode::timeout: return "timeout";
    case ErrorCode::peer_lost: return "peer lost";
    case ErrorCode::shutdown: return "shutdown";
    case ErrorCode::not_initialized: return "not initialized";
    case ErrorCode::initialization: return "initialization";
    case ErrorCode::transport: return "transport";
    case ErrorCode::internal: return "internal";
  }
  return "unknown";
}

Status::Status(ErrorCode code, std::string message, int peer)
    : details_(std::make_shared<const Details>(Details{code, std::move(message), peer, nullptr})) {}

const std::string& Status::message() const {
  static const std::string none;
  return ok() ? none : details_->message;
}

Status Status::because(const Status& cause) const {
  if (ok()) return cause;
  if (cause.ok()) return *this;
  // Links are immutable and may be shared: this chain is copied, with `cause` at its end.
  std::vector<const Details*> links;
  for (const Details* link = details_.get(); link != nullptr; link = link->cause.get()) {
    links.push_back(link);
  }
  Status chained = cause;
  for (auto link = links.rbegin(); link != links.rend(); ++link) {
    chained.details_ = std::make_shared<const Details>(
        Details{(*link)->code, (*link)->message, (*link)->peer, chained.details_});
  }
  return chained;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  std::string text = details_->message;
  for (auto link = details_->cause; link; link = link->cause) text += ": " + link->message;
  return text;
}

void Status::throw_if_error() const {
  if (ok()) return;
  using enum ErrorCode;
  throw_matching<invalid_argument, unsupported, mismatch, duplicate_name, stalled, timeout,
                 peer_lost, shutdown, not_initialized, initialization, transport, internal>(
      code(), to_string(), peer());
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

}  // namespace rueda
