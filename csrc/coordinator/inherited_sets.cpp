#include "coordinator/inherited_sets.h"

#include <string>
#include <utility>

#include "core/strings.h"
#include "plan/wire.h"

namespace rueda {

std::vector<std::byte> encode_known_sets(const std::optional<KnownSets>& known) {
  Writer writer;
  writer.byte(known ? 1 : 0);
  if (!known) return writer.take();
  writer.integer(known->next_id);
  writer.unsigned_integer(known->sets.size());
  for (const KnownSets::Known& set : known->sets) {
    writer.integer(set.id);
    writer.byte(set.is_member ? 1 : 0);
    writer.unsigned_integer(set.definition);
  }
  return writer.take();
}

Expected<std::optional<KnownSets>> decode_known_sets(std::span<const std::byte> bytes) {
  const auto malformed = [] {
    return Status(ErrorCode::initialization, "its list of process sets cannot be read");
  };
  Reader reader(bytes);
  const bool was_there = reader.byte() != 0;
  if (!was_there) {
    if (!reader.ok() || !reader.at_end()) return malformed();
    return std::optional<KnownSets>();
  }
  KnownSets known;
  const std::int64_t next_id = reader.integer();
  if (next_id < 1 || next_id > first_formed) return malformed();
  known.next_id = static_cast<int>(next_id);
  const std::size_t count = reader.size();
  if (count > process_set_limit) return malformed();
  std::int64_t before = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t id = reader.integer();
    if (id <= before || id >= next_id) return malformed();
    before = id;
    const bool is_member = reader.byte() != 0;
    known.sets.push_back({static_cast<int>(id), is_member, reader.unsigned_integer()});
  }
  if (!reader.ok() || !reader.at_end()) return malformed();
  return std::optional(std::move(known));
}

Expected<std::shared_ptr<ProcessSets>> inherit_sets(Bootstrap& bootstrap,
                                                    const std::optional<KnownSets>& own,
                                                    Time deadline) {
  const std::vector<std::byte> told = encode_known_sets(own);
  const auto all = bootstrap.allgather(
      "process sets", std::string(reinterpret_cast<const char*>(told.data()), told.size()),
      deadline);
  if (!all) return all.status();
  std::vector<std::optional<KnownSets>> known;
  for (const std::string& text : *all) {
    auto its = decode_known_sets(std::as_bytes(std::span(text)));
    if (!its) {
      return Status(its.status().code(), str("rank ", known.size(), ": ", its.status().message()));
    }
    known.push_back(std::move(its).value());
  }
  if (own) known[static_cast<std::size_t>(bootstrap.rank())]->gone = own->gone;
  return std::make_shared<ProcessSets>(bootstrap.rank(), known);
}

}  // namespace rueda
