// How the ranks of a host gain access to each other's memory: they exchange who they are, pass
// their files through rank 0, and try who may read whose memory. After each round either all ranks
// continue or none does.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <utility>

#include "core/cpu_quota.h"
#include "core/strings.h"
#include "onehost/host_exchange.h"
#include "onehost/host_memory.h"
#include "onehost/host_peer_info.h"
#include "onehost/life_line.h"
#include "onehost/processors.h"
#include "transport/socket.h"

namespace rueda {

namespace {

// Address space, not memory. Must hold the channels of all process sets there may be, and some
// thousand persistent operations.
constexpr std::size_t control_bytes = std::size_t{4} << 30;
constexpr std::size_t min_control_bytes = std::size_t{16} << 20;

// What is passed on, in this order. The last two are passed only if every rank has the first of
// them, which replaces a missing life line.
enum Descriptor : std::size_t {
  control_file,
  registered_file,
  wake_event,
  own_process,
  own_life_line
};

}  // namespace

class HostMemoryForming {
 public:
  HostMemoryForming(Bootstrap& bootstrap, Time deadline)
      : bootstrap_(bootstrap), deadline_(deadline), probe_(bootstrap.size()) {}

  Expected<std::shared_ptr<HostMemory>> form() {
    const auto told = bootstrap_.allgather("host/info", prepare(), deadline_);
    if (!told) return told.status();
    const auto shared = bootstrap_.allgather("host/shared", share(told.value()), deadline_);
    if (!shared) return shared.status();
    // The round ensures that all probes exist until all ranks have tried.
    const auto access = bootstrap_.allgather("host/access", try_all(), deadline_);
    if (!access) return access.status();
    memory_->no_direct_access_ = first_obstacle(access.value());
    return memory_;
  }

 private:
  // Creates everything of this rank's own; returns the info that describes it.
  Expected<std::string> prepare() {
    auto registered = RegisteredMemory::of_process();
    if (!registered) return registered.status();
    const std::size_t least =
        std::max(min_control_bytes, ControlMemory::min_bytes(bootstrap_.size()));
    auto control = make_memory_file(std::max(sparse_length(control_bytes), least));
    if (!control) return control.status();
    memory_.reset(new HostMemory(bootstrap_, *registered.value()));
    control_ = std::move(control).value();
    event_.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!event_) return system_error("cannot make an event", errno);
    process_ = PeerProcess::open_own();
    admit_peers();
    HostPeerInfo info;
    if (bootstrap_.rank() == 0) {
      auto listener = listen_on("unix:@rueda-host-" + random_name());
      if (!listener) return listener.status();
      listener_ = std::move(listener).value();
      info.address = listener_->address;
      info.world = random_name();
    }
    info.process = static_cast<int>(::getpid());
    info.tells_its_end = static_cast<bool>(process_);
    info.fences_for_others = can_fence_for_others();
    info.probe.proof = probe_.proof();
    info.probe.proof_address = probe_.proof_address();
    info.probe.places_address = probe_.places_address();
    info.processors = allowed_processors();
    info.ranks_at_once = ranks_within_cpu_quota();
    return info.encode();
  }

  Expected<std::string> share(const std::vector<std::string>& told) {
    if (Status read = read_infos(told); !read.ok()) return read;
    const bool all_tell_their_end = std::all_of(
        infos_.begin(), infos_.end(), [](const HostPeerInfo& info) { return info.tells_its_end; });
    std::vector<int> own{control_.get(), memory_->registered_memory_->fd(), event_.get()};
    if (all_tell_their_end) {
      const int line = life_line();
      own.insert(own.end(), {process_.get(), line >= 0 ? line : process_.get()});
    }
    const MeetingPoint place{listener_ ? listener_->fd.get() : -1, infos_[0].address,
                             infos_[0].world};
    const auto take = [this](int rank, std::span<UniqueFd> fds) { return take_files(rank, fds); };
    const Status exchanged =
        exchange_descriptors(place, bootstrap_.rank(), bootstrap_.size(), own, take, deadline_);
    if (!exchanged.ok()) return exchanged;
    memory_->blocks_ = std::make_unique<ControlBlocks>(bootstrap_.rank(), memory_->control_);
    return std::string();
  }

  Status read_infos(const std::vector<std::string>& told) {
    std::vector<std::vector<int>> processors;
    for (int rank = 0; rank < bootstrap_.size(); ++rank) {
      auto info =
          HostPeerInfo::decode(bootstrap_.world_rank(rank), told[static_cast<std::size_t>(rank)]);
      if (!info) return info.status();
      processors.push_back(info->processors);
      memory_->remote_[static_cast<std::size_t>(rank)] = info->probe.owner;
      infos_.push_back(std::move(info).value());
    }
    memory_->sleepers_fence_ =
        std::all_of(infos_.begin(), infos_.end(),
                    [](const HostPeerInfo& info) { return info.fences_for_others; });
    const bool have_time =
        std::all_of(infos_.begin(), infos_.end(), [this](const HostPeerInfo& info) {
          return info.ranks_at_once == 0 || info.ranks_at_once >= bootstrap_.size();
        });
    memory_->is_oversubscribed_ = !have_time || !can_each_have_a_processor(processors);
    return {};
  }

  Status take_files(int rank, std::span<UniqueFd> fds) {
    const auto index = static_cast<std::size_t>(rank);
    auto control = SharedMapping::in_common(fds[control_file].get());
    if (!control) return control.status();
    if (control.value()->bytes() < ControlMemory::min_bytes(bootstrap_.size())) {
      const int name = bootstrap_.world_rank(rank);
      return Status(ErrorCode::transport, str("the memory of rank ", name, " is too short"), name);
    }
    memory_->control_[index] = ControlMemory(std::move(control).value(), bootstrap_.size());
    if (rank == bootstrap_.rank() && !memory_->control_[index].populate_front()) {
      return system_error("cannot share memory", ENOMEM);
    }
    memory_->events_[index] = std::move(fds[wake_event]);
    UniqueFd process;
    UniqueFd line;
    if (fds.size() > own_life_line) {
      process = std::move(fds[own_process]);
      line = std::move(fds[own_life_line]);
    }
    memory_->processes_[index] = std::make_shared<const PeerProcess>(
        infos_[index].process, std::move(process), std::move(line));
    return take_registered(index, fds[registered_file].get());
  }

  // Ranks in this process use its memory, which is mapped already.
  Status take_registered(std::size_t index, int fd) {
    const RegisteredMemory& own = *memory_->registered_memory_;
    if (is_same_file(fd, own.fd())) {
      memory_->registered_[index] = own.memory();
      return {};
    }
    auto mapping = SharedMapping::of(fd, SharedMapping::InChildren::dropped);
    if (!mapping) return mapping.status();
    memory_->registered_[index] = mapping->memory();
    memory_->registered_mappings_[index] = std::move(mapping).value();
    return {};
  }

  // Why this rank cannot access some other rank; empty if it can access all.
  Expected<std::string> try_all() {
    for (const HostPeerInfo& info : infos_) {
      if (Status tried = try_access(bootstrap_.rank(), info.probe); !tried.ok()) {
        return tried.to_string();
      }
    }
    return std::string();
  }

  [[nodiscard]] Status first_obstacle(const std::vector<std::string>& obstacles) const {
    for (int rank = 0; rank < bootstrap_.size(); ++rank) {
      const std::string& obstacle = obstacles[static_cast<std::size_t>(rank)];
      if (obstacle.empty()) continue;
      const int name = bootstrap_.world_rank(rank);
      return Status(ErrorCode::unsupported, str("rank ", name, " ", obstacle), name);
    }
    return {};
  }

  Bootstrap& bootstrap_;
  const Time deadline_;
  const AccessProbe probe_;
  std::shared_ptr<HostMemory> memory_;
  UniqueFd control_;
  UniqueFd event_;
  UniqueFd process_;
  std::optional<Listener> listener_;
  std::vector<HostPeerInfo> infos_;
};

Expected<std::shared_ptr<HostMemory>> HostMemory::form(Bootstrap& bootstrap, Time deadline) {
  auto formed = HostMemoryForming(bootstrap, deadline).form();
  if (formed) return formed;
  return Status(ErrorCode::initialization, "the ranks of this host cannot share memory")
      .because(formed.status());
}

}  // namespace rueda
