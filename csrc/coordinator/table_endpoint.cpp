#include "coordinator/table_endpoint.h"

#include <utility>

namespace rueda {

namespace {

TableTimeouts timeouts_of(const Options& options) {
  return {seconds(options.stall_warning), seconds(options.stall_error)};
}

}  // namespace

TableEndpoint::TableEndpoint(PointToPoint& messages, ActiveMessages& control,
                             const Departures& departures, const EpochServices& services)
    : client_(
          messages,
          [&control](int peer, std::span<const std::byte> message) {
            control.send(peer, ControlMessage::table_request, message);
          },
          [&departures](int peer) { return departures.has_left(peer); },
          timeouts_of(services.options), services.metrics),
      owner_(
          messages, client_,
          [&control](int peer, std::span<const std::byte> message) {
            control.send(peer, ControlMessage::table_answer, message);
          },
          [&departures](int peer) { return departures.has_left(peer); },
          timeouts_of(services.options), services.metrics) {}

void TableEndpoint::carry_out(Command command) {
  if (command.kind == Command::Kind::use_table) {
    client_.submit(std::move(command.table->operation));
  } else if (command.kind == Command::Kind::open_table) {
    owner_.open(std::move(command.table->held));
    command.handle->complete({});
  } else {
    owner_.close(command.table->held.number);
  }
}

bool TableEndpoint::step(Time now) {
  const bool served = owner_.step(now);
  return client_.step(now) || served;
}

void TableEndpoint::lose(int rank, const Status& reason) {
  owner_.lose(rank);
  client_.lose(rank, reason);
}

void TableEndpoint::fail_all(const Status& reason) {
  owner_.fail_all();
  client_.fail_all(reason);
}

}  // namespace rueda
