#include "mpi/bootstrap.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "core/strings.h"
#include "mpi/error.h"
#include "plan/wire.h"

namespace rueda::mpi {

// The buffers of one barrier. If it fails, they are leaked, because MPI may still write to them.
struct MpiBootstrap::Gathering {
  std::vector<std::byte> mine;
  int my_length = 0;
  std::vector<int> lengths;
  std::vector<int> offsets;
  std::vector<std::byte> all;
  MPI_Request request = MPI_REQUEST_NULL;
};

Status MpiBootstrap::put(const std::string& key, const std::string& value) {
  if (known_.contains(key) || !pending_.emplace(key, value).second) {
    return Status(ErrorCode::internal, str("bootstrap key '", key, "' was put twice"));
  }
  return {};
}

Expected<std::string> MpiBootstrap::get(const std::string& key) {
  const auto found = known_.find(key);
  if (found == known_.end()) {
    return Status(ErrorCode::initialization,
                  str("no rank has put the bootstrap key '", key, "' before the last barrier"));
  }
  return found->second;
}

Status MpiBootstrap::barrier(Time deadline) {
  if (!broken_.ok()) return broken_;
  if (is_finalized()) {
    return Status(ErrorCode::initialization, "MPI was finalised before all ranks had met");
  }
  auto gathering = std::make_unique<Gathering>();
  Status status = gather(*gathering, deadline);
  if (status.ok()) status = store(*gathering);
  if (!status.ok()) {
    static_cast<void>(gathering.release());
    communicator_.abandon();
    broken_ = status;
  }
  return status;
}

Status MpiBootstrap::gather(Gathering& gathering, Time deadline) {
  const std::string doing = str("bootstrap of ", size(), " ranks over MPI");
  Writer writer;
  for (const auto& [key, value] : pending_) {
    writer.text(key);
    writer.text(value);
  }
  gathering.mine = writer.take();
  if (gathering.mine.size() > std::numeric_limits<int>::max() / static_cast<std::size_t>(size())) {
    return Status(ErrorCode::initialization,
                  str(doing, ": ", gathering.mine.size(), " bytes are too many"));
  }
  gathering.my_length = static_cast<int>(gathering.mine.size());
  gathering.lengths.resize(static_cast<std::size_t>(size()));
  int code = MPI_Iallgather(&gathering.my_length, 1, MPI_INT, gathering.lengths.data(), 1, MPI_INT,
                            communicator_.get(), &gathering.request);
  if (code != MPI_SUCCESS) return failure(code, doing, -1, ErrorCode::initialization);
  if (Status status = await(gathering.request, deadline, doing); !status.ok()) return status;

  int total = 0;
  for (const int length : gathering.lengths) {
    gathering.offsets.push_back(total);
    total += length;
  }
  gathering.all.resize(static_cast<std::size_t>(total));
  code = MPI_Iallgatherv(gathering.mine.data(), gathering.my_length, MPI_BYTE, gathering.all.data(),
                         gathering.lengths.data(), gathering.offsets.data(), MPI_BYTE,
                         communicator_.get(), &gathering.request);
  if (code != MPI_SUCCESS) return failure(code, doing, -1, ErrorCode::initialization);
  return await(gathering.request, deadline, doing);
}

Status MpiBootstrap::store(const Gathering& gathering) {
  Reader reader(gathering.all);
  while (reader.ok() && !reader.at_end()) {
    std::string key = reader.text();
    std::string value = reader.text();
    if (reader.ok() && !known_.emplace(key, std::move(value)).second) {
      return Status(ErrorCode::internal, str("bootstrap key '", key, "' was put by two ranks"));
    }
  }
  if (!reader.ok()) return Status(ErrorCode::internal, "the bootstrap over MPI received garbage");
  pending_.clear();
  return {};
}

}  // namespace rueda::mpi
