// The stages of collectives across hosts: what the members of one host do in its memory before and
// after data travels between hosts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "onehost/host_pull.h"
#include "plan/hierarchy_plan.h"
#include "plan/set_hosts.h"

namespace rueda {

// How ranks exchange data within a stage. Waiting for messages from other hosts dominates anyway,
// so nothing is staged, and slots are smaller than those of a set on one host.
[[nodiscard]] HostPolicy policy_of_stages(const HostPolicy& policy);

// The part of a lane that belongs to one of the rings that this rank takes part in.
[[nodiscard]] Lane lane_across(const Lane& lane, int ring);

// The lane for one part of an operation.
[[nodiscard]] Lane lane_of_part(Lane lane, std::int64_t part);

// Reserves places in a channel's queue (if there is a channel) for this many collectives. All
// members do so when an operation begins, which fixes the order. Returns the first ticket.
[[nodiscard]] std::uint64_t line_up(HostChannel* channel, std::int64_t collectives);

// Whether the other members on this host, if any, can reach the memory.
[[nodiscard]] bool is_reachable_here(const Lane& lane, const std::byte* data, std::size_t bytes);

// Combines the contributions of this host's members, for those members that have an output. Does
// not divide or scale the result: that is left to the ranks that hold the total. Uses
// lane.before_links.
[[nodiscard]] std::unique_ptr<Operation> reduce_within(const Lane& lane, const HostPolicy& policy,
                                                       const Reduction& reduction,
                                                       std::vector<Piece> pieces,
                                                       std::uint64_t ticket);

// The same for slices of one piece, which has an output: slice i is for member i.
[[nodiscard]] std::unique_ptr<Operation> reduce_slices(const Lane& lane, const HostPolicy& policy,
                                                       const Reduction& reduction,
                                                       const Piece& piece,
                                                       const std::vector<Segment>& slices,
                                                       std::uint64_t ticket);

// Reads what other members of this host offer, and offers `data` (null: nothing). Uses
// lane.after_links.
[[nodiscard]] std::unique_ptr<Operation> pull_within(const Lane& lane, const HostPolicy& policy,
                                                     const std::byte* data, std::size_t bytes,
                                                     std::vector<HostPull::Transfer> transfers,
                                                     std::uint64_t ticket);

// Copies slice i of `output` from member i, for each other member; this one offers its own slice.
// One element is `element` bytes. Uses lane.after_links.
[[nodiscard]] std::unique_ptr<Operation> gather_slices(const Lane& lane, const HostPolicy& policy,
                                                       std::byte* output, std::size_t element,
                                                       const std::vector<Segment>& slices,
                                                       std::uint64_t ticket);

}  // namespace rueda
