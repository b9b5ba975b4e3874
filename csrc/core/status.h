// How errors travel inside the library: as values, never as exceptions across threads or ranks.
#pragma once

#include <cassert>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "rueda/error.h"

namespace rueda {

// Success, or a code with a message, the rank to blame if there is one, details that programs may
// act on, and the chain of causes. Copying is cheap: the chain is shared and immutable. Does not
// convert to bool, which would read as if true meant an error.
class [[nodiscard]] Status {
 public:
  Status() = default;  // success
  Status(ErrorCode code, std::string message, int peer = -1, ErrorDetails details = {});

  [[nodiscard]] bool ok() const { return head_ == nullptr; }

  [[nodiscard]] ErrorCode code() const { return ok() ? ErrorCode::ok : head_->code; }
  [[nodiscard]] const std::string& message() const;  // of this link of the chain only
  [[nodiscard]] int peer() const { return ok() ? -1 : head_->peer; }
  // From the outermost link that has any.
  [[nodiscard]] const ErrorDetails& details() const;

  // This error with `cause` added below its existing causes: "message: cause's message: ...". If
  // one of the two is a success, returns the other.
  [[nodiscard]] Status because(const Status& cause) const;
  // The whole chain in one line.
  [[nodiscard]] std::string to_string() const;
  // Throws the ErrorOf<code> that belongs to this status; does nothing on success.
  void throw_if_error() const;

 private:
  struct Link {
    ErrorCode code;
    std::string message;
    int peer;
    ErrorDetails details;
    std::shared_ptr<const Link> cause;
  };
  std::shared_ptr<const Link> head_;
};

// A value or the reason why there is none.
template <class T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : content_(std::move(value)) {}
  Expected(Status status) : content_(std::move(status)) {
    assert(!std::get<Status>(content_).ok());
  }

  [[nodiscard]] bool ok() const { return content_.index() == 0; }
  explicit operator bool() const { return ok(); }

  [[nodiscard]] T& value() & { return std::get<0>(content_); }
  [[nodiscard]] const T& value() const& { return std::get<0>(content_); }
  [[nodiscard]] T&& value() && { return std::get<0>(std::move(content_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  [[nodiscard]] Status status() const { return ok() ? Status() : std::get<1>(content_); }

 private:
  std::variant<T, Status> content_;
};

}  // namespace rueda
