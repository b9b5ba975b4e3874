// Payloads of table requests and answers that are too large to travel with their headers: messages
// between two ranks in a process set of their own, which applications cannot name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "coordinator/point_to_point.h"
#include "core/strings.h"

namespace rueda {

inline constexpr int table_mail_set = -2;
// Payloads of up to this many bytes travel with the header.
inline constexpr std::size_t table_inline_bytes = 4096;

enum class MailOf : std::uint8_t { request, answer };

// Starts one side of such a message. `number`: the request's, among those of the requesting rank.
inline std::shared_ptr<HandleState> mail(PointToPoint& messages, bool is_send, int peer,
                                         std::uint64_t number, MailOf what, std::byte* data,
                                         std::size_t bytes) {
  MessageRequest message;
  message.is_send = is_send;
  message.set_id = table_mail_set;
  message.peer = peer;
  message.tag = static_cast<std::int64_t>(number * 2 + (what == MailOf::answer ? 1 : 0));
  message.dtype = DataType::uint8;
  message.count = static_cast<std::int64_t>(bytes);
  message.data = data;
  auto handle = std::make_shared<HandleState>();
  message.handle = handle;
  messages.submit(std::move(message));
  return handle;
}

// Refuses the other side's message, by receiving a size that it cannot have.
inline void refuse_mail(PointToPoint& messages, int peer, std::uint64_t number, MailOf what) {
  static_cast<void>(mail(messages, false, peer, number, what, nullptr, 0));
}

// Allocates memory for a payload; fails if there is none.
[[nodiscard]] inline Status make_room(std::vector<std::byte>& bytes, std::size_t size) {
  try {
    bytes.resize(size);
  } catch (const std::exception&) {
    return {ErrorCode::invalid_argument, str("a rank has no memory for a request of ", size,
                                             " bytes to a table: make smaller requests")};
  }
  return {};
}

}  // namespace rueda
