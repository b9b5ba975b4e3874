#include <algorithm>
#include <string_view>
#include <utility>

#include "api/bindings.h"
#include "api/current_runtime.h"
#include "core/strings.h"
#include "rueda/rueda.h"

namespace rueda {

namespace {

std::shared_ptr<const ProcessSetMembers> members_of(ProcessSet set) {
  const auto [runtime, set_id] = runtime_of(set);
  auto members = runtime->process_sets().find(set_id);
  if (!members) runtime->process_sets().missing(set.id).throw_if_error();
  return members;
}

// Changes of process sets are operations on the world.
Handle change(Collective collective, std::vector<int> ranks, int id) {
  Submission submission;
  submission.request.collective = collective;
  submission.request.set_ranks = std::move(ranks);
  submission.request.set_id = id;
  std::vector<Submission> one;
  one.push_back(std::move(submission));
  return current_runtime()->submit(0, std::move(one)).front();
}

}  // namespace

Handle begin_adding_process_set(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return change(Collective::add_process_set, std::move(ranks), -1);
}

Handle begin_removing_process_set(ProcessSet set) {
  return change(Collective::remove_process_set, {}, set.id);
}

ProcessSet added_process_set(const Handle& handle) {
  handle.wait();
  return {handle.state()->output.process_set};
}

ProcessSet add_process_set(std::vector<int> ranks) {
  return added_process_set(begin_adding_process_set(std::move(ranks)));
}

void remove_process_set(ProcessSet set) {
  begin_removing_process_set(set).wait();
}

int group_number(int slot, int generation) {
  const auto require = [&](std::string_view what, int value, int limit) {
    if (value >= 0 && value < limit) return;
    throw InvalidArgumentError(str("group_number(", slot, ", ", generation, "): the ", what,
                                   " must be from 0 to ", limit - 1));
  };
  require("slot", slot, process_set_limit);
  require("generation", generation, group_generations);
  return first_formed + generation * process_set_limit + slot;
}

int group_slot(ProcessSet set) {
  if (set.id >= first_formed) return slot_of(set.id);
  throw InvalidArgumentError(str("process set ", set.id, " is not a group: it has no group slot"));
}

ProcessSet create_group(int number, const std::vector<int>& ranks) {
  current_runtime()->sets().form(number, ranks).throw_if_error();
  return {number};
}

void destroy_group(ProcessSet set) {
  current_runtime()->sets().destroy(set.id).throw_if_error();
}

std::vector<int> ranks_of(ProcessSet set) {
  return members_of(set)->ranks;
}

int rank_in(ProcessSet set) {
  return members_of(set)->rank;
}

std::vector<int> process_set_ids() {
  return current_runtime()->process_sets().ids();
}

void end_process_sets() {
  current_runtime()->sets().end_added();
}

void set_timeout(ProcessSet set, double seconds) {
  const auto [runtime, set_id] = runtime_of(set);
  runtime->sets().set_timeout(set_id, rueda::seconds(seconds)).throw_if_error();
}

void extend_timeout(ProcessSet set, double seconds) {
  members_of(set)->timeout->extend(rueda::seconds(seconds));
}

bool was_added_as(ProcessSet set, std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  return members_of(set)->definition == definition_of(ranks);
}

}  // namespace rueda
