// The stages of collectives across hosts: what members of one host do in its memory before and
// after something has gone to other hosts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "onehost/host_pull.h"
#include "plan/hierarchy_plan.h"
#include "plan/set_hosts.h"

namespace rueda {

// How ranks exchange what within a stage: by messages of other hosts they wait long anyway, so that
// nothing is staged, and slots are smaller than those of a set on one host.
[[nodiscard]] HostPolicy policy_of_stages(const HostPolicy& policy);

// The part of a lane that is a ring, in which this rank takes part.
[[nodiscard]] Lane lane_across(const Lane& lane, int ring);

// The lane of one of an operation's parts.
[[nodiscard]] Lane lane_of_part(Lane lane, std::int64_t part);

// Takes places in the queue of a channel, where there is one, for so many collectives: all members
// do so when an operation begins, and so agree on the order. Returns the first.
[[nodiscard]] std::uint64_t line_up(HostChannel* channel, std::int64_t collectives);

// Whether the others on this host reach the memory, where there are others.
[[nodiscard]] bool is_reachable_here(const Lane& lane, const std::byte* data, std::size_t bytes);

// Combines what this host's members contribute, for those of them who have an output. Neither
// divided nor scaled at the end: that is for those who know all. In lane.before_links.
[[nodiscard]] std::unique_ptr<Operation> reduce_within(const Lane& lane, const HostPolicy& policy,
                                                       const Reduction& reduction,
                                                       std::vector<Piece> pieces,
                                                       std::uint64_t ticket);

// The same of slices of one piece, which has an output: slice i is for member i.
[[nodiscard]] std::unique_ptr<Operation> reduce_slices(const Lane& lane, const HostPolicy& policy,
                                                       const Reduction& reduction,
                                                       const Piece& piece,
                                                       const std::vector<Segment>& slices,
                                                       std::uint64_t ticket);

// Takes what other members of this host offer, and offers `data` (null: nothing). In
// lane.after_links.
[[nodiscard]] std::unique_ptr<Operation> pull_within(const Lane& lane, const HostPolicy& policy,
                                                     const std::byte* data, std::size_t bytes,
                                                     std::vector<HostPull::Transfer> transfers,
                                                     std::uint64_t ticket);

// Takes slice i of `output` from member i's, for all members but this one, which offers its own.
// One element is `element` bytes. In lane.after_links.
[[nodiscard]] std::unique_ptr<Operation> gather_slices(const Lane& lane, const HostPolicy& policy,
                                                       std::byte* output, std::size_t element,
                                                       const std::vector<Segment>& slices,
                                                       std::uint64_t ticket);

}  // namespace rueda
