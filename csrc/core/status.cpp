#include "core/status.h"

#include <vector>

#include "rueda/types.h"

namespace rueda {

namespace {

template <ErrorCode... codes>
[[noreturn]] void throw_matching(ErrorCode code, const std::string& message, int peer,
                                 const ErrorDetails& details) {
  ((code == codes ? throw ErrorOf<codes>(message, peer, details) : void()), ...);
  throw Error(code, message, peer, details);
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

std::string_view name_of(ErrorReason reason) {
  switch (reason) {
    case ErrorReason::unspecified: return "";
    case ErrorReason::deadline: return "deadline";
    case ErrorReason::gradient_misfit: return "gradient_misfit";
    case ErrorReason::not_finite: return "not_finite";
    case ErrorReason::ended: return "ended";
    case ErrorReason::refused: return "refused";
    case ErrorReason::unreachable: return "unreachable";
  }
  return "";
}

Status::Status(ErrorCode code, std::string message, int peer, ErrorDetails details)
    : head_(std::make_shared<const Link>(
          Link{code, std::move(message), peer, std::move(details), nullptr})) {}

const std::string& Status::message() const {
  static const auto& none = *new std::string;  // never destroyed: threads may ask at exit
  return ok() ? none : head_->message;
}

const ErrorDetails& Status::details() const {
  static const auto& none = *new ErrorDetails;  // never destroyed: threads may ask at exit
  for (const Link* link = head_.get(); link != nullptr; link = link->cause.get()) {
    if (link->details != none) return link->details;
  }
  return none;
}

Status Status::because(const Status& cause) const {
  if (ok()) return cause;
  if (cause.ok()) return *this;
  // Links are immutable and may be shared, so this chain is copied, with `cause` at its end.
  std::vector<const Link*> links;
  for (const Link* link = head_.get(); link != nullptr; link = link->cause.get()) {
    links.push_back(link);
  }
  Status chained = cause;
  for (auto link = links.rbegin(); link != links.rend(); ++link) {
    Link copy = **link;
    copy.cause = chained.head_;
    chained.head_ = std::make_shared<const Link>(std::move(copy));
  }
  return chained;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  std::string text = head_->message;
  for (auto link = head_->cause; link; link = link->cause) text += ": " + link->message;
  return text;
}

void Status::throw_if_error() const {
  if (ok()) return;
  using enum ErrorCode;
  throw_matching<invalid_argument, unsupported, mismatch, duplicate_name, stalled, timeout,
                 peer_lost, shutdown, not_initialized, initialization, transport, internal>(
      code(), to_string(), peer(), details());
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
