// Remembers what was agreed on, so that a repeated request travels as a number.
//
// Every rank of a process set applies the same responses in the same order, so every rank's cache
// has the same entries under the same numbers. Numbers are never reused: an unknown number was
// evicted.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/response.h"

namespace rueda {

class ResponseCache {
 public:
  struct Entry {
    std::uint64_t id = 0;
    Request request;
    std::vector<std::int64_t> first_extents;
  };

  explicit ResponseCache(std::int64_t capacity) : capacity_(capacity) {}

  // Null if unknown.
  [[nodiscard]] const Entry* find(std::uint64_t id) const;
  [[nodiscard]] const Entry* find(const std::string& name) const;
  // The entry that all ranks have for exactly this; null if there is none. `first_extents`: (rank,
  // rows).
  [[nodiscard]] const Entry* find(
      const Request& request, std::span<const std::pair<int, std::int64_t>> first_extents) const;

  // Applies a response: inserts, replaces or refreshes its entry, and evicts the least recently
  // used one. Must be called for the same responses in the same order on all ranks.
  void apply(const Response& response);

  [[nodiscard]] std::size_t size() const { return entries_.size(); }

 private:
  using Entries = std::list<Entry>;  // most recently used first

  void erase(Entries::iterator entry);

  std::int64_t capacity_;
  std::uint64_t next_id_ = 0;
  Entries entries_;
  std::unordered_map<std::uint64_t, Entries::iterator> by_id_;
  std::unordered_map<std::string, Entries::iterator> by_name_;
};

}  // namespace rueda
