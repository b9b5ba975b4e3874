#include "plan/response_builder.h"

#include <algorithm>

#include "core/strings.h"
#include "plan/rank_list.h"

namespace rueda {

namespace {

// How many different ways to request a tensor a message lists; it counts the rest.
constexpr std::size_t max_variants = 8;

}  // namespace

Response ResponseBuilder::respond(const AnnouncedTensor& tensor) const {
  Response response;
  response.request = tensor.request();
  response.status = verdict(tensor);
  if (!response.status.ok()) {
    response.kind = ResponseKind::error;
    const auto refused = [](const AnnouncedTensor::Asked& variant) {
      return !variant.request.error.ok();
    };
    const auto who = std::find_if(tensor.variants.begin(), tensor.variants.end(), refused);
    if (who != tensor.variants.end()) response.other_set = who->request.other_set;
    return response;
  }
  response.absent = tensors_.absent_ranks(tensor);
  const Collective collective = response.request.collective;
  if (collective == Collective::allgather || collective == Collective::alltoall) {
    // No rank's own extent, so that ranks with the response in their cache never see another's.
    response.request.shape.front() = 0;
  }
  if (collective == Collective::allgather) {
    response.first_extents.assign(static_cast<std::size_t>(naming_.size()), 0);
    for (const auto& [rank, rows] : tensor.first_extents) {
      response.first_extents[static_cast<std::size_t>(rank)] = rows;
    }
  }
  return response;
}

void ResponseBuilder::add_error(ResponseList& list, const Response& error,
                                const AnnouncedTensor::Groups& groups) {
  for (const std::string& group : groups) {
    if (group.empty() && groups.size() > 1) continue;  // the others fail the name, too
    list.push_back(error);
    list.back().request.group = group;
  }
}

Status ResponseBuilder::verdict(const AnnouncedTensor& tensor) const {
  const std::string& name = tensor.request().name;
  for (const AnnouncedTensor::Asked& variant : tensor.variants) {
    const Status& error = variant.request.error;
    if (error.ok()) continue;
    const std::vector<int> ranks = tensors_.ranks_of(tensor, variant);
    ErrorDetails details = error.details();
    details.tensor = name;
    return {error.code(),
            str(naming_.describe(ranks), " cannot take part in ", naming_.quoted(name), ": ",
                error.to_string()),
            ranks.empty() ? -1 : naming_.world_rank(ranks.front()), std::move(details)};
  }
  return tensor.variants.size() == 1 ? verdict_on_absent(tensor) : verdict_on_variants(tensor);
}

Status ResponseBuilder::verdict_on_absent(const AnnouncedTensor& tensor) const {
  const Request& request = tensor.request();
  const std::vector<int> absent = tensors_.absent_ranks(tensor);
  if (absent.empty()) return {};
  if (request.collective == Collective::broadcast && contains(absent, request.root)) {
    return {ErrorCode::invalid_argument,
            str(naming_.quoted(request.name), ": the root of the broadcast, ",
                naming_.describe({request.root}), ", has joined and has nothing to send")};
  }
  if (request.collective == Collective::alltoall ||
      request.collective == Collective::persistent_allreduce) {
    return {ErrorCode::invalid_argument,
            str(naming_.quoted(request.name), ": ", name_of(request.collective),
                " cannot run once ", naming_.describe(absent), " has joined")};
  }
  if (!request.leaf_ranks.empty()) {
    return {ErrorCode::invalid_argument,
            str(naming_.quoted(request.name), ": an allreduce of leaves cannot run once ",
                naming_.describe(absent), " has joined, whose leaves would be missing")};
  }
  return {};
}

// Begins with the most common request, so that text and blame do not depend on who came first.
Status ResponseBuilder::verdict_on_variants(const AnnouncedTensor& tensor) const {
  struct Party {
    const Request* request;
    std::vector<int> ranks;
  };
  std::vector<Party> parties;
  for (const AnnouncedTensor::Asked& variant : tensor.variants) {
    parties.push_back({&variant.request, tensors_.ranks_of(tensor, variant)});
  }
  std::sort(parties.begin(), parties.end(), [](const Party& left, const Party& right) {
    return left.ranks.size() != right.ranks.size() ? left.ranks.size() > right.ranks.size()
                                                   : left.ranks < right.ranks;
  });
  const std::string& name = tensor.request().name;
  const std::size_t shown = std::min(parties.size(), max_variants);
  std::string text;
  std::string_view previous;
  ErrorDetails details{.tensor = name};
  for (std::size_t i = 1; i < shown; ++i) {
    const auto difference = compare(*parties.front().request, *parties[i].request);
    if (!difference) continue;
    if (difference->field != previous) {
      text += str(text.empty() ? "" : "; ", difference->field,
                  " differs between ranks: ", difference->left, " on ",
                  naming_.describe(parties.front().ranks));
    }
    text += str(", ", difference->right, " on ", naming_.describe(parties[i].ranks));
    previous = difference->field;
    if (details.field.empty()) {
      details.field = difference->field;
      details.values = {difference->left};
    }
    if (details.field == difference->field) details.values.push_back(difference->right);
  }
  if (details.field == "device") text += ": all must be on GPUs, or all on the CPU";
  if (shown < parties.size()) {
    text += str(", and in ", parties.size() - shown, " more ways on other ranks");
  }
  const std::vector<int>& deviating = parties[1].ranks;
  return {ErrorCode::mismatch, str(naming_.quoted(name), ": ", text),
          deviating.empty() ? -1 : naming_.world_rank(deviating.front()), std::move(details)};
}

}  // namespace rueda
