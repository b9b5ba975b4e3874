#include "transport/composite_transport.h"

#include <algorithm>
#include <utility>

#include "core/earlier.h"

namespace rueda {

CompositeTransport::CompositeTransport(std::vector<std::unique_ptr<Transport>> links,
                                       std::vector<std::size_t> link_of)
    : links_(std::move(links)), link_of_(std::move(link_of)) {
  for (const auto& link : links_) name_.append(name_.empty() ? "" : "+").append(link->name());
}

bool CompositeTransport::progress() {
  bool moved = false;
  for (const auto& link : links_) moved = link->progress() || moved;
  return moved;
}

bool CompositeTransport::requires_polling() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& link) { return link->requires_polling(); });
}

int CompositeTransport::wait_fd() const {
  for (const auto& link : links_) {
    if (link->wait_fd() >= 0) return link->wait_fd();
  }
  return -1;
}

bool CompositeTransport::has_work() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& link) { return link->has_work(); });
}

std::optional<Time> CompositeTransport::next_look() const {
  std::optional<Time> first;
  for (const auto& link : links_) first = earlier(first, link->next_look());
  return first;
}

bool CompositeTransport::arm() {
  for (auto link = links_.begin(); link != links_.end(); ++link) {
    if ((*link)->arm()) continue;
    std::for_each(links_.begin(), link, [](const auto& armed) { armed->disarm(); });
    return false;
  }
  return true;
}

void CompositeTransport::disarm() {
  for (const auto& link : links_) link->disarm();
}

bool CompositeTransport::awaits_much() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const auto& link) { return link->awaits_much(); });
}

void CompositeTransport::abort(const Status& reason) {
  for (const auto& link : links_) link->abort(reason);
}

}  // namespace rueda
