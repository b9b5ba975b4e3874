// Reading and writing the memory of another process, where the kernel permits it: Yama, seccomp,
// different users and namespaces forbid it, so it is found out by trying.
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
  int process = -1;  // its identifier
};

// [local, local + bytes) = [remote, ...), and the other way. Errors name the rank; peer_lost when
// its process is gone.
Status read_memory(const RemoteProcess& from, void* local, std::uint64_t remote, std::size_t bytes);
Status write_memory(const RemoteProcess& to, const void* local, std::uint64_t remote,
                    std::size_t bytes);

// Asks Yama, where it would forbid siblings to reach each other, to let the ranks at this process.
void admit_peers();

// What the others try on: a word that proves that the memory is this rank's, and a place for each
// to write to.
class AccessProbe {
 public:
  static constexpr std::size_t proof_words = 4;
  using Proof = std::array<std::uint64_t, proof_words>;

  explicit AccessProbe(int size);

  [[nodiscard]] const Proof& proof() const { return *proof_; }
  [[nodiscard]] std::uint64_t proof_address() const;
  [[nodiscard]] std::uint64_t places_address() const;

 private:
  // On the heap, so that the addresses that peers were told stay.
  std::unique_ptr<const Proof> proof_;
  std::vector<std::uint64_t> places_;
};

// Where the probe of a peer lies in its memory.
struct RemoteProbe {
  RemoteProcess owner;
  AccessProbe::Proof proof{};
  std::uint64_t proof_address = 0;
  std::uint64_t places_address = 0;
};

// Whether `rank` can read and write there, while the owner's AccessProbe exists.
Status try_access(int rank, const RemoteProbe& probe);

}  // namespace rueda
