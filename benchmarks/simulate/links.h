// What one rank has sent and received, and the links over which it went.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "settings.h"
#include "timeline.h"

namespace rueda::simulate {

struct Traffic {
  std::int64_t data_messages = 0;  // sent, also to ranks of the same host
  std::int64_t data_bytes = 0;
  std::int64_t control_sent = 0;
  std::int64_t control_received = 0;
  std::int64_t control_bytes_sent = 0;
  std::int64_t control_bytes_received = 0;

  [[nodiscard]] std::int64_t control_messages() const { return control_sent + control_received; }
  [[nodiscard]] std::int64_t control_bytes() const {
    return control_bytes_sent + control_bytes_received;
  }

  friend Traffic operator-(const Traffic& left, const Traffic& right) {
    return {left.data_messages - right.data_messages,
            left.data_bytes - right.data_bytes,
            left.control_sent - right.control_sent,
            left.control_received - right.control_received,
            left.control_bytes_sent - right.control_bytes_sent,
            left.control_bytes_received - right.control_bytes_received};
  }
};

// One link from each host to the network, which carries one message after the other.
class Links {
 public:
  explicit Links(const Settings& settings)
      : costs_(settings.costs),
        ranks_per_host_(settings.ranks_per_host),
        links_(static_cast<std::size_t>(settings.hosts)),
        control_free_(static_cast<std::size_t>(settings.ranks())),
        traffic_(static_cast<std::size_t>(settings.ranks())) {}

  // When a message that is ready at `at` has arrived. Its sender counts it.
  Time send_data(int from, int to, std::int64_t bytes, Time at) {
    if (host_of(from) == host_of(to)) {
      return at + nanoseconds(costs_.memory_latency + costs_.memory * static_cast<double>(bytes));
    }
    return occupy(from, bytes, at) + nanoseconds(costs_.link.latency);
  }

  // Does not wait behind data: networks divide a link among connections. One rank's messages do not
  // overtake each other.
  Time send_control(int from, int to, std::int64_t bytes, Time at) {
    Traffic& own = of(from);
    ++own.control_sent;
    own.control_bytes_sent += bytes;
    Traffic& other = of(to);
    ++other.control_received;
    other.control_bytes_received += bytes;
    const bool stays = host_of(from) == host_of(to);
    if (!stays) occupy(from, bytes, at);
    Time& free = control_free_[static_cast<std::size_t>(from)];
    free = std::max(free, at);
    if (!stays) free += nanoseconds(costs_.link.per_byte * static_cast<double>(bytes));
    return free + nanoseconds(stays ? costs_.memory_latency : costs_.link.latency);
  }

  void count_data(int rank, std::int64_t messages, std::int64_t bytes) {
    of(rank).data_messages += messages;
    of(rank).data_bytes += bytes;
  }

  [[nodiscard]] const Traffic& traffic(int rank) const {
    return traffic_[static_cast<std::size_t>(rank)];
  }
  // That the host has sent to others.
  [[nodiscard]] std::int64_t bytes(int host) const {
    return links_[static_cast<std::size_t>(host)].bytes;
  }
  [[nodiscard]] int host_of(int rank) const { return rank / ranks_per_host_; }

 private:
  Traffic& of(int rank) { return traffic_[static_cast<std::size_t>(rank)]; }
  Time occupy(int from, std::int64_t bytes, Time at) {
    Link& link = links_[static_cast<std::size_t>(host_of(from))];
    link.bytes += bytes;
    link.free =
        std::max(link.free, at) + nanoseconds(costs_.link.per_byte * static_cast<double>(bytes));
    return link.free;
  }

  struct Link {
    Time free;
    std::int64_t bytes = 0;  // so far
  };

  const Costs costs_;
  const int ranks_per_host_;
  std::vector<Link> links_;         // by host
  std::vector<Time> control_free_;  // by rank
  std::vector<Traffic> traffic_;
};

}  // namespace rueda::simulate
