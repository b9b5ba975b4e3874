#include "plan/negotiator.h"

#include <algorithm>
#include <set>

#include "core/strings.h"
#include "plan/rank_list.h"

namespace rueda {

Negotiator::Negotiator(NegotiatorOptions options)
    : options_(std::move(options)),
      tree_(options_.rank, static_cast<int>(options_.members.size()), options_.fanout),
      subtrees_(tree_),
      naming_(options_.members, options_.set_name),
      joined_(tree_, subtrees_),
      tensors_(tree_, subtrees_, joined_),
      errors_(!subtrees_.children().empty()),
      stalls_({options_.stall_warning, options_.stall_error, options_.asks_whereabouts}, tree_,
              tensors_, joined_, naming_),
      cache_(options_.cache_capacity),
      builder_(tensors_, naming_),
      ready_(tensors_, builder_, naming_, options_.fusion_threshold) {}

// --- What this rank wants

Status Negotiator::submit(Request request, Time now) {
  std::vector<Request> one;
  one.push_back(std::move(request));
  return submit_group(std::move(one), now);
}

AnnouncedTensors::Tensors::iterator Negotiator::tensor_for(const std::string& name, Time since) {
  const auto [tensor, is_new] = tensors_.add(name);
  AnnouncedTensor::Waiting& waiting = tensor->second.waiting;
  if (is_new || since < waiting.since) stalls_.begin(waiting, since);
  return tensor;
}

Status Negotiator::submit_group(std::vector<Request> requests, Time now) {
  if (!closed_.ok()) return closed_;
  const Request& first = requests.front();
  if (joined_.has_self()) {
    return {
        ErrorCode::invalid_argument,
        str(naming_.quoted(first.name), " was submitted after join(): wait for the join first")};
  }
  Status missed = errors_.take_missed(requests);
  if (!missed.ok()) return missed;
  for (Request& request : requests) {
    const auto tensor = tensor_for(request.name, now);
    AnnouncedTensor& state = tensor->second;
    // The name still awaits an answer that the failure of a group took from this rank; that will
    // answer this request, too.
    if (state.self_ready) continue;
    state.self_ready = true;
    // Where the host writes a result is this rank's own business, and each pair of ranks settles
    // the sizes of an alltoall.
    if (!request.on_gpu || request.collective == Collective::alltoall) request.output_bytes = 0;
    if (is_watched()) options_.on_ready(request, {{tree_.rank()}}, now);
    stalls_.report_soon(state.waiting, now);
    if (request.collective == Collective::allgather && !request.shape.empty()) {
      state.first_extents.emplace_back(tree_.rank(), request.shape.front());
    }
    add_ranks(state.variant_of(request).ranks, {tree_.rank()});
    tensors_.update_complete(tensor);
  }
  return {};
}

void Negotiator::amend(const std::string& name, const Status& error) {
  const AnnouncedTensor* const tensor = tensors_.find(name);
  if (tensor == nullptr || !tensor->self_ready) return;
  const auto own = std::find_if(
      tensor->variants.begin(), tensor->variants.end(),
      [&](const AnnouncedTensor::Asked& variant) { return contains(variant.ranks, tree_.rank()); });
  Announcement amendment;
  amendment.variants.push_back({own->request, {tree_.rank()}});
  amendment.variants.front().request.error = error;
  amendment.amends = true;
  merge_amendment(tree_.rank(), amendment);
}

void Negotiator::join() {
  errors_.forget_missed();
  joined_.join();
  up_.joined.push_back(tree_.rank());
  tensors_.update_complete();
}

bool Negotiator::leave(Leaving how) {
  if (!closed_.ok() || has_left_) return false;
  if (how != Leaving::alone) {
    // This rank may be waiting for a list that has not been taken yet.
    const std::uint64_t heard = errors_.applied() - agreed_.size();
    const bool waits = how == Leaving::later_with_all;
    return retiring_.note({tree_.rank(), waits ? heard : RetiringRank::always});
  }
  has_left_ = true;
  leaving_.push_back(tree_.rank());
  up_.leaving.push_back(tree_.rank());
  return true;
}

// --- What the children say

void Negotiator::receive(int peer, std::span<const std::byte> message, Time now) {
  Reader reader(message);
  const auto kind = static_cast<MessageKind>(reader.byte());
  const auto malformed = [&] {
    break_off(str("a malformed message arrived from ", naming_.describe({peer})));
  };
  if (contains(subtrees_.children(), peer)) {
    auto up = decode_up(reader, tree_.size());
    if (kind != MessageKind::up || !up) return malformed();
    receive_up(peer, std::move(*up), now);
  } else if (!tree_.is_root() && peer == tree_.parent()) {
    if (kind == MessageKind::responses) return receive_responses(reader, message);
    const auto ids = decode_unknown_ids(reader);
    if (kind != MessageKind::unknown_ids || !ids) return malformed();
    resend(*ids);
  }
}

void Negotiator::receive_up(int child, UpMessage message, Time now) {
  if (!closed_.ok()) return;
  // What a child submitted before it joined is merged before its absence completes anything.
  if (!joined_.awaits_numbers(child, message.resolved) || !joined_.join(child, message.joined)) {
    return break_off(str("malformed message from ", naming_.describe({child})));
  }
  up_.joined.insert(up_.joined.end(), message.joined.begin(), message.joined.end());
  errors_.note_applied(child, message.applied, subtrees_.children());
  merge_cached(child, message.cached, now);
  for (Announcement& announcement : message.announcements) {
    merge(child, std::move(announcement), now);
  }
  joined_.settle_numbers(child, message.resolved);
  if (!message.joined.empty() || message.resolved > 0) tensors_.update_complete();
  leaving_.insert(leaving_.end(), message.leaving.begin(), message.leaving.end());
  up_.leaving.insert(up_.leaving.end(), message.leaving.begin(), message.leaving.end());
  for (const RetiringRank& word : message.retiring) retiring_.note(word);
}

void Negotiator::merge_cached(int child, const std::vector<std::uint64_t>& ids, Time now) {
  std::vector<std::uint64_t> unknown;
  for (const std::uint64_t id : ids) {
    const ResponseCache::Entry* known = cache_.find(id);
    if (known == nullptr) {
      unknown.push_back(id);
      continue;
    }
    Announcement announcement;
    announcement.variants.push_back({known->request, {}});
    if (!known->first_extents.empty()) {
      for (const int rank : subtrees_.below(child)) {
        announcement.first_extents.emplace_back(
            rank, known->first_extents[static_cast<std::size_t>(rank)]);
      }
    }
    merge(child, std::move(announcement), now);
  }
  if (unknown.empty()) return;
  joined_.await_numbers(child, unknown.size());
  outgoing_.push_back({child, encode_unknown_ids(unknown)});
}

void Negotiator::merge(int child, Announcement announcement, Time now) {
  if (errors_.was_answered(child, announcement)) return;
  if (announcement.amends) return merge_amendment(child, announcement);
  const Time since = announcement.partial ? now - seconds(announcement.age) : now;
  const auto tensor = tensor_for(announcement.variants.front().request.name, since);
  AnnouncedTensor& state = tensor->second;
  if (state.complete_children.contains(child)) return;
  if (announcement.partial) {
    const std::size_t known = tensors_.ready_ranks(state).size();
    state.partial_children[child] = std::move(announcement);
    if (tensors_.ready_ranks(state).size() > known) stalls_.report_soon(state.waiting, now);
    return;
  }
  stalls_.report_soon(state.waiting, now);
  state.complete_children.insert(child);
  state.partial_children.erase(child);
  for (const Variant& variant : announcement.variants) {
    AnnouncedTensor::Asked& asked = state.variant_of(variant.request);
    add_ranks(asked.ranks, variant.ranks);
    if (variant.ranks.empty()) asked.children.push_back(child);
  }
  add_ranks(state.absent, announcement.absent);
  state.first_extents.insert(state.first_extents.end(), announcement.first_extents.begin(),
                             announcement.first_extents.end());
  if (is_watched()) {
    const std::vector<int> ready = tensors_.ready_ranks(state, child);
    if (!ready.empty()) options_.on_ready(state.request(), ready, now);
  }
  tensors_.update_complete(tensor);
}

void Negotiator::merge_amendment(int child, const Announcement& announcement) {
  const Variant& amendment = announcement.variants.front();
  const std::string& name = amendment.request.name;
  AnnouncedTensor* const tensor = tensors_.find(name);
  if (tensor == nullptr) return;
  const bool counted =
      child == tree_.rank() ? tensor->self_ready : tensor->complete_children.contains(child);
  if (!counted) return;
  add_ranks(tensor->variant_of(amendment.request).ranks, amendment.ranks);
  if (!tensor->complete || tensors_.is_just_completed(name)) return;
  if (!tree_.is_root()) {
    up_.announcements.push_back(announcement);
  } else if (!ready_.contains(name)) {
    tensors_.complete_again(name);  // its group was incomplete, and has now failed
  }
}

// --- What the parent says

void Negotiator::receive_responses(Reader& reader, std::span<const std::byte> message) {
  for (const int child : subtrees_.children()) {
    outgoing_.push_back({child, std::vector<std::byte>(message.begin(), message.end())});
  }
  if (!closed_.ok()) return;
  auto responses = decode_responses(reader, cache_, tree_.size());
  if (!responses) return break_off("a malformed response arrived from the negotiation");
  apply(std::move(*responses));
}

void Negotiator::resend(const std::vector<std::uint64_t>& ids) {
  if (!closed_.ok()) return;
  up_.resolved += ids.size();
  for (auto& [name, tensor] : tensors_) {
    if (!tensor.announced_id || !contains(ids, *tensor.announced_id)) continue;
    tensor.announced_id.reset();
    up_.announcements.push_back(tensors_.announce(tensor, false));
  }
}

void Negotiator::break_off(const std::string& why) {
  if (!closed_.ok()) return;
  Response broken;
  broken.kind = ResponseKind::left;
  broken.rank = tree_.rank();
  broken.status = Status(ErrorCode::internal, str(naming_.describe({tree_.rank()}), ": ", why),
                         naming_.world_rank(tree_.rank()));
  for (const int child : subtrees_.children())
    outgoing_.push_back({child, encode({broken}, cache_)});
  if (!tree_.is_root()) {
    UpMessage farewell;
    farewell.applied = errors_.applied();
    farewell.leaving.push_back(tree_.rank());
    outgoing_.push_back({tree_.parent(), encode(farewell)});
  }
  apply({broken});
}

void Negotiator::apply(ResponseList responses) {
  errors_.begin_list();
  std::set<std::string> took_part;
  for (const Response& response : responses) {
    const std::string& name = response.request.name;
    switch (response.kind) {
      case ResponseKind::execute:
        cache_.apply(response);
        tensors_.erase(name);
        break;
      case ResponseKind::error:
        if (tensors_.fail(name, response.request.group)) took_part.insert(name);
        errors_.note(response);
        ready_.forget_group(response.request.group);
        // An error may come once for each of several groups: a rank that got it has not missed it.
        if (response.status.code() == ErrorCode::stalled && !joined_.has_self() &&
            !took_part.contains(name)) {
          errors_.miss(response);
        }
        break;
      case ResponseKind::warning: break;
      case ResponseKind::joined: joined_.begin_anew(); break;
      case ResponseKind::left: close(response.status); break;
    }
  }
  // A name waiting to be sent or released must not outlive its tensor: if the name were used again,
  // the next round would take the entry for its own.
  tensors_.drop_answered_completions();
  ready_.drop_answered();
  std::erase_if(up_.announcements, [this](const Announcement& announcement) {
    return !tensors_.contains(announcement.variants.front().request.name);
  });
  agreed_.push_back(std::move(responses));
}

void Negotiator::close(const Status& reason) {
  closed_ = reason;
  tensors_.clear();
  up_ = {};
  ready_.clear_groups();
}

// --- Flush

void Negotiator::flush(Time now) {
  if (!closed_.ok()) return;
  send_down(stalls_.check(now, up_.announcements));
  if (tree_.is_root()) {
    flush_root();
  } else {
    flush_up();
  }
}

void Negotiator::flush_up() {
  for (const std::string& name : tensors_.take_completed()) {
    AnnouncedTensor& tensor = tensors_.at(name);
    const bool is_agreed = tensor.variants.size() == 1 && joined_.ranks().empty();
    const ResponseCache::Entry* const known =
        is_agreed ? cache_.find(tensor.request(), tensor.first_extents) : nullptr;
    if (known != nullptr) {
      tensor.announced_id = known->id;
      up_.cached.push_back(known->id);
    } else {
      up_.announcements.push_back(tensors_.announce(tensor, false));
    }
  }
  // After everything that they have announced.
  if (joined_.awaits_no_numbers()) up_.retiring = retiring_.take_news();
  if (up_.empty()) return;
  up_.applied = errors_.applied();
  outgoing_.push_back({tree_.parent(), encode(std::exchange(up_, {}))});
}

void Negotiator::flush_root() {
  for (const std::string& name : tensors_.take_completed()) ready_.add(name);
  const bool all_retire = retiring_.are_all_of(tree_.size()) && joined_.awaits_no_numbers();
  const bool may_hold_back = leaving_.empty() && !all_retire && !joined_.has_all();
  std::vector<std::string> held = may_hold_back ? ready_.take_held() : std::vector<std::string>();
  send_down(ready_.release());
  ready_.hold(std::move(held));
  if (joined_.has_all() && joined_.awaits_no_numbers()) {
    send_down(ready_.fail_unfinished_groups());
    Response response;
    response.kind = ResponseKind::joined;
    response.rank = joined_.ranks().back();
    send_down({response});
  }
  if (all_retire && retiring_.are_done(errors_.applied())) leaving_.push_back(tree_.rank());
  if (!leaving_.empty()) {
    Response response;
    response.kind = ResponseKind::left;
    response.rank = leaving_.front();
    response.status = Status(ErrorCode::shutdown,
                             str(naming_.describe({response.rank}), ' ', naming_.departure()),
                             naming_.world_rank(response.rank));
    send_down({response});
  }
}

void Negotiator::send_down(ResponseList list) {
  if (list.empty()) return;
  const std::vector<std::byte> message = encode(list, cache_);
  for (const int child : subtrees_.children()) outgoing_.push_back({child, message});
  apply(std::move(list));
}

}  // namespace rueda
