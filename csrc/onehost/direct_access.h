// Access to another process's memory, if the kernel permits it. Yama, seccomp, different users and
// namespaces can forbid it, so it is tried.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/status.h"

namespace rueda {

// A rank's process as its peers see it.
struct RemoteProcess {
  int rank = -1;
  int process = -1;  // process id
};

// Copies [remote, remote + bytes) to local, or the other way. Errors name the rank; peer_lost if
// its process is gone.
Status read_memory(const RemoteProcess& from, void* local, std::uint64_t remote, std::size_t bytes);
Status write_memory(const RemoteProcess& to, const void* local, std::uint64_t remote,
                    std::size_t bytes);

// If Yama forbids siblings to access each other, asks it to let other ranks access this process.
void admit_peers();

// The target that peers try: a random word that proves the memory is this rank's, and a place for
// each peer to write to.
class AccessProbe {
 public:
  static constexpr std::size_t proof_words = 4;
  using Proof = std::array<std::uint64_t, proof_words>;

  explicit AccessProbe(int size);

  [[nodiscard]] const Proof& proof() const { return *proof_; }
  [[nodiscard]] std::uint64_t proof_address() const;
  [[nodiscard]] std::uint64_t places_address() const;

 private:
  // On the heap, so that the addresses given to peers stay valid.
  std::unique_ptr<const Proof> proof_;
  std::vector<std::uint64_t> places_;
};

// Position of a peer's probe in its memory.
struct RemoteProbe {
  RemoteProcess owner;
  AccessProbe::Proof proof{};
  std::uint64_t proof_address = 0;
  std::uint64_t places_address = 0;
};

// Whether `rank` can read and write there. The owner's AccessProbe must still exist.
Status try_access(int rank, const RemoteProbe& probe);

}  // namespace rueda
