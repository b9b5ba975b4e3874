#include "onehost/direct_access.h"

#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "core/strings.h"

namespace rueda {

namespace {

using MemoryCall = ssize_t (*)(pid_t, const iovec*, unsigned long, const iovec*, unsigned long,
                               unsigned long);

Status not_reached(const char* what, int rank, int error) {
  const ErrorCode code = error == ESRCH ? ErrorCode::peer_lost : ErrorCode::transport;
  // The kernel forbids it to all other processes once a process has changed its user.
  const char* remedy =
      error == EPERM ? " (if it has called setuid(), prctl(PR_SET_DUMPABLE, 1) permits it again)"
                     : "";
  return Status(
      code, str("cannot ", what, " the memory of rank ", rank, ": ", std::strerror(error), remedy),
      rank);
}

// Repeats partial transfers; the kernel cuts them short, for instance at 2 GiB.
Status transfer_all(MemoryCall transfer, const char* what, const RemoteProcess& peer,
                    std::byte* local, std::uint64_t remote, std::size_t bytes) {
  while (bytes > 0) {
    const iovec here{local, bytes};
    const iovec there{reinterpret_cast<void*>(remote), bytes};
    const ssize_t moved = transfer(peer.process, &here, 1, &there, 1, 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return not_reached(what, peer.rank, moved < 0 ? errno : EFAULT);
    local += moved;
    remote += static_cast<std::uint64_t>(moved);
    bytes -= static_cast<std::size_t>(moved);
  }
  return {};
}

}  // namespace

Status read_memory(const RemoteProcess& from, void* local, std::uint64_t remote,
                   std::size_t bytes) {
  return transfer_all(&::process_vm_readv, "read", from, static_cast<std::byte*>(local), remote,
                      bytes);
}

Status write_memory(const RemoteProcess& to, const void* local, std::uint64_t remote,
                    std::size_t bytes) {
  // The system call's struct lacks const, but it only reads from there.
  auto* const source = static_cast<std::byte*>(const_cast<void*>(local));
  return transfer_all(&::process_vm_writev, "write", to, source, remote, bytes);
}

void admit_peers() {
  int scope = 0;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  if (scope == 1) ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

AccessProbe::AccessProbe(int size) : places_(static_cast<std::size_t>(size)) {
  auto proof = std::make_unique<Proof>();
  while (::getrandom(proof->data(), sizeof(Proof), 0) != static_cast<ssize_t>(sizeof(Proof))) {
  }
  proof_ = std::move(proof);
}

std::uint64_t AccessProbe::proof_address() const {
  return reinterpret_cast<std::uintptr_t>(proof_->data());
}

std::uint64_t AccessProbe::places_address() const {
  return reinterpret_cast<std::uintptr_t>(places_.data());
}

Status try_access(int rank, const RemoteProbe& probe) {
  AccessProbe::Proof found{};
  const RemoteProcess& owner = probe.owner;
  if (Status read = read_memory(owner, found.data(), probe.proof_address, sizeof found);
      !read.ok()) {
    return read;
  }
  // In another PID namespace, the id may be that of an unrelated process, which must not be written
  // to.
  if (found != probe.proof) {
    return Status(ErrorCode::transport,
                  str("the process ID of rank ", owner.rank,
                      " is another process's here (another PID namespace?)"),
                  owner.rank);
  }
  const auto index = static_cast<std::uint64_t>(rank);
  const std::uint64_t place = probe.places_address + index * sizeof(std::uint64_t);
  const std::uint64_t written = found[0] + index;
  std::uint64_t seen = 0;
  if (Status write = write_memory(owner, &written, place, sizeof written); !write.ok())
    return write;
  if (Status read = read_memory(owner, &seen, place, sizeof seen); !read.ok()) return read;
  if (seen == written) return {};
  return Status(ErrorCode::transport,
                str("data written to the memory of rank ", owner.rank, " does not arrive"),
                owner.rank);
}

}  // namespace rueda
