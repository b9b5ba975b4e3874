#include "plan/negotiation_message.h"

#include "plan/negotiation_check.h"

namespace rueda {

namespace {

template <class Enum>
Enum read_enum(Reader& reader, Enum last) {
  const std::uint8_t value = reader.byte();
  return static_cast<Enum>(value <= static_cast<std::uint8_t>(last) ? value : reader.fail());
}

int read_int(Reader& reader) {
  const std::int64_t wide = reader.integer();
  const int value = static_cast<int>(wide);
  return value == wide ? value : reader.fail();
}

// Grows with the data that really exists: a message with a false length costs no memory.
template <class Read>
auto read_list(Reader& reader, const Read& read) {
  std::vector<decltype(read(reader))> items;
  for (std::size_t rest = reader.size(); rest > 0 && reader.ok(); --rest) {
    items.push_back(read(reader));
  }
  return items;
}

template <class Enum>
void write_enum(Writer& writer, Enum value) {
  writer.byte(static_cast<std::uint8_t>(value));
}

void write(Writer& writer, const Request& request) {
  writer.text(request.name);
  write_enum(writer, request.collective);
  write_enum(writer, request.dtype);
  write_enum(writer, request.wire.value_or(request.dtype));
  write_enum(writer, request.compression.codec);
  if (is_sparse(request.compression.codec)) writer.real(request.compression.fraction);
  writer.integers(request.leaf_ranks);
  write_enum(writer, request.op);
  writer.byte(request.on_gpu ? 1 : 0);
  if (request.on_gpu) writer.unsigned_integer(request.output_bytes);
  writer.integer(request.priority);
  writer.real(request.prescale);
  writer.real(request.postscale);
  writer.integer(request.root);
  writer.integers(request.shape);
  writer.integers(request.splits);
  if (request.collective == Collective::add_process_set) writer.integers(request.set_ranks);
  if (request.collective == Collective::remove_process_set) writer.integer(request.set_id);
  writer.text(request.group);
  writer.integer(request.group_size);
  write(writer, request.error);
  if (!request.error.ok()) writer.integer(request.other_set);
}

Request read_request(Reader& reader) {
  Request request;
  request.name = reader.text();
  request.collective = read_enum(reader, Collective::leave);
  request.dtype = read_enum(reader, DataType::complex128);
  const auto wire = read_enum(reader, DataType::complex128);
  if (wire != request.dtype) request.wire = wire;
  request.compression.codec = read_enum(reader, CodecKind::random_k);
  if (is_sparse(request.compression.codec)) request.compression.fraction = reader.real();
  request.leaf_ranks = reader.integers<int>();
  request.op = read_enum(reader, ReduceOp::bit_xor);
  request.on_gpu = reader.byte() != 0;
  if (request.on_gpu) request.output_bytes = reader.unsigned_integer();
  request.priority = read_int(reader);
  request.prescale = reader.real();
  request.postscale = reader.real();
  request.root = read_int(reader);
  request.shape = reader.integers<std::int64_t>();
  request.splits = reader.integers<std::int64_t>();
  if (request.collective == Collective::add_process_set) {
    request.set_ranks = reader.integers<int>();
  }
  if (request.collective == Collective::remove_process_set) request.set_id = read_int(reader);
  request.group = reader.text();
  request.group_size = read_int(reader);
  request.error = read_status(reader);
  if (!request.error.ok()) request.other_set = read_int(reader);
  return request;
}

void write(Writer& writer, const Announcement& announcement) {
  writer.unsigned_integer(announcement.variants.size());
  for (const Variant& variant : announcement.variants) {
    write(writer, variant.request);
    writer.integers(variant.ranks);
  }
  writer.unsigned_integer(announcement.first_extents.size());
  for (const auto& [rank, rows] : announcement.first_extents) {
    writer.integer(rank);
    writer.integer(rows);
  }
  writer.integers(announcement.absent);
  writer.byte(announcement.amends ? 1 : 0);
  writer.byte(announcement.partial ? 1 : 0);
  if (announcement.partial) writer.real(announcement.age);
}

Announcement read_announcement(Reader& reader) {
  Announcement announcement;
  announcement.variants = read_list(reader, [](Reader& from) {
    Variant variant;
    variant.request = read_request(from);
    variant.ranks = from.integers<int>();
    return variant;
  });
  announcement.first_extents = read_list(reader, [](Reader& from) {
    const int rank = read_int(from);
    return std::pair(rank, from.integer());
  });
  announcement.absent = reader.integers<int>();
  announcement.amends = reader.byte() != 0;
  announcement.partial = reader.byte() != 0;
  if (announcement.partial) announcement.age = reader.real();
  return announcement;
}

// The cache entry that equals the response exactly; null if there is none.
const ResponseCache::Entry* cached(const Response& response, const ResponseCache& cache) {
  if (response.kind != ResponseKind::execute || !response.absent.empty()) return nullptr;
  const ResponseCache::Entry* entry = cache.find(response.request.name);
  if (entry == nullptr || compare(entry->request, response.request) ||
      entry->request.output_bytes != response.request.output_bytes ||
      entry->first_extents != response.first_extents) {
    return nullptr;
  }
  return entry;
}

void write(Writer& writer, const Response& response) {
  write_enum(writer, response.kind);
  write(writer, response.request);
  writer.integers(response.first_extents);
  writer.integers(response.absent);
  write(writer, response.status);
  if (response.kind == ResponseKind::error) writer.integer(response.other_set);
  writer.integer(response.rank);
}

Response read_response(Reader& reader) {
  Response response;
  response.kind = read_enum(reader, ResponseKind::left);
  response.request = read_request(reader);
  response.first_extents = reader.integers<std::int64_t>();
  response.absent = reader.integers<int>();
  response.status = read_status(reader);
  if (response.kind == ResponseKind::error) response.other_set = read_int(reader);
  response.rank = read_int(reader);
  return response;
}

template <class T>
std::optional<T> checked(const Reader& reader, T value) {
  if (!reader.ok() || !reader.at_end()) return std::nullopt;
  return value;
}

}  // namespace

void write(Writer& writer, const Status& status) {
  write_enum(writer, status.code());
  if (status.ok()) return;
  writer.text(status.to_string());
  writer.integer(status.peer());
  const ErrorDetails& details = status.details();
  write_enum(writer, details.reason);
  writer.text(details.tensor);
  writer.text(details.field);
  writer.unsigned_integer(details.values.size());
  for (const std::string& value : details.values) writer.text(value);
}

Status read_status(Reader& reader) {
  const auto code = read_enum(reader, ErrorCode::internal);
  if (code == ErrorCode::ok) return {};
  std::string message = reader.text();
  const int peer = read_int(reader);
  ErrorDetails details;
  details.reason = read_enum(reader, ErrorReason::unreachable);
  details.tensor = reader.text();
  details.field = reader.text();
  details.values = read_list(reader, [](Reader& from) { return from.text(); });
  return {code, std::move(message), peer, std::move(details)};
}

bool is_about_rounds(std::span<const std::byte> message) {
  const auto kind = static_cast<MessageKind>(Reader(message).byte());
  return kind == MessageKind::rounds_up || kind == MessageKind::rounds_down;
}

std::vector<std::byte> encode(const UpMessage& message) {
  Writer writer;
  write_enum(writer, MessageKind::up);
  writer.unsigned_integer(message.applied);
  writer.unsigned_integer(message.resolved);
  writer.integers(message.joined);
  writer.integers(message.leaving);
  writer.unsigned_integer(message.retiring.size());
  for (const RetiringRank& retiring : message.retiring) {
    writer.integer(retiring.rank);
    writer.unsigned_integer(retiring.lists);
  }
  writer.integers(message.cached);
  writer.unsigned_integer(message.announcements.size());
  for (const Announcement& announcement : message.announcements) write(writer, announcement);
  return writer.take();
}

std::vector<std::byte> encode(const ResponseList& responses, const ResponseCache& cache) {
  Writer writer;
  write_enum(writer, MessageKind::responses);
  writer.unsigned_integer(responses.size());
  for (const Response& response : responses) {
    const ResponseCache::Entry* entry = cached(response, cache);
    writer.byte(entry != nullptr ? 1 : 0);
    if (entry != nullptr) {
      writer.unsigned_integer(entry->id);
    } else {
      write(writer, response);
    }
  }
  return writer.take();
}

std::vector<std::byte> encode_unknown_ids(const std::vector<std::uint64_t>& ids) {
  Writer writer;
  write_enum(writer, MessageKind::unknown_ids);
  writer.integers(ids);
  return writer.take();
}

std::optional<UpMessage> decode_up(Reader& reader, int set_size) {
  UpMessage message;
  message.applied = reader.unsigned_integer();
  message.resolved = reader.unsigned_integer();
  message.joined = reader.integers<int>();
  message.leaving = reader.integers<int>();
  message.retiring = read_list(reader, [](Reader& from) {
    const int rank = read_int(from);
    return RetiringRank{rank, from.unsigned_integer()};
  });
  message.cached = reader.integers<std::uint64_t>();
  message.announcements = read_list(reader, read_announcement);
  if (!is_plausible(message, set_size)) reader.fail();
  return checked(reader, std::move(message));
}

std::optional<ResponseList> decode_responses(Reader& reader, const ResponseCache& cache,
                                             int set_size) {
  // No list repeats a number; otherwise a few bytes could grow into a great deal.
  std::size_t entries_left = cache.size();
  ResponseList responses = read_list(reader, [&](Reader& from) {
    if (from.byte() == 0) return read_response(from);
    Response response;
    const ResponseCache::Entry* entry = cache.find(from.unsigned_integer());
    if (entry == nullptr || entries_left-- == 0) {
      from.fail();
      return response;
    }
    response.request = entry->request;
    response.first_extents = entry->first_extents;
    return response;
  });
  if (!is_plausible(responses, set_size)) reader.fail();
  return checked(reader, std::move(responses));
}

std::optional<std::vector<std::uint64_t>> decode_unknown_ids(Reader& reader) {
  return checked(reader, reader.integers<std::uint64_t>());
}

}  // namespace rueda
