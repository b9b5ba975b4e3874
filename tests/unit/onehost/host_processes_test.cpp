// Memory that real processes share.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <vector>

#include "membership/bootstrap_rendezvous.h"
#include "onehost/host_memory.h"
#include "onehost/process_state.h"
#include "ranks/rank_threads.h"
#include "rueda/rueda.h"
#include "transport/socket.h"
#include "unit/child_process.h"
#include "unit/contains.h"
#include "unit/seccomp_filter.h"

namespace rueda::test::host_processes_test {

namespace {

using Body = std::function<void(HostMemory&)>;

// Child processes that are the ranks of one world; the destructor ends those that are left.
class Processes {
 public:
  Processes(int size, const std::function<void(Bootstrap&)>& body) {
    const std::string address = "unix:@rueda-test-" + random_name();
    for (int rank = 0; rank < size; ++rank) {
      children_.push_back(start_child([&] {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        auto bootstrap = connect_rendezvous(address, rank, size, soon());
        expect_ok(bootstrap.status(), "entering");
        body(*bootstrap.value());
      }));
    }
  }
  ~Processes() {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      exit_code_of_child(child);
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  // Waits for the rank; returns its exit code, or -1 if a signal ended it.
  int end_of(int rank) {
    const pid_t child = children_[static_cast<std::size_t>(rank)];
    children_[static_cast<std::size_t>(rank)] = start_child([] {});  // a placeholder
    return exit_code_of_child(child);
  }
  bool all_succeed() {
    bool succeeded = true;
    for (std::size_t rank = 0; rank < children_.size(); ++rank) {
      succeeded = end_of(static_cast<int>(rank)) == 0 && succeeded;
    }
    return succeeded;
  }

 private:
  std::vector<pid_t> children_;
};

// Runs `body` on `size` processes that share memory, after prepare(rank) on each.
bool succeeds_on(
    int size, const Body& body, const std::function<void(int rank)>& prepare = [](int) {}) {
  return Processes(size,
                   [&](Bootstrap& bootstrap) {
                     prepare(bootstrap.rank());
                     auto formed = HostMemory::form(bootstrap, soon());
                     expect_ok(formed.status(), "sharing memory");
                     body(*formed.value());
                   })
      .all_succeed();
}

std::byte* await_block(const HostMemory& memory, int rank, std::uint64_t key) {
  await([&] { return memory.find(rank, key) != nullptr; }, "a block");
  return memory.find(rank, key);
}

// tell() publishes a number to the other ranks under its own key; hear() reads a rank's number.
void tell(HostMemory& memory, std::uint64_t key, std::uint64_t number) {
  auto* place = memory.publish(key, 16);
  reinterpret_cast<std::atomic<std::uint64_t>*>(place)[1] = number;
  reinterpret_cast<std::atomic<std::uint64_t>*>(place)[0] = 1;
}
std::uint64_t hear(const HostMemory& memory, int rank, std::uint64_t key) {
  auto* place = reinterpret_cast<std::atomic<std::uint64_t>*>(await_block(memory, rank, key));
  await([&] { return place[0] == 1; }, "a number");
  return place[1];
}
void meet(HostMemory& memory, std::uint64_t key) {
  tell(memory, key, 0);
  for (int rank = 0; rank < memory.size(); ++rank) hear(memory, rank, key);
}

void read_and_write_a_peer(HostMemory& memory) {
  expect(memory.has_direct_access(), memory.no_direct_access().to_string());
  const std::size_t count = 3'000'000;
  std::vector<int> values(count, memory.rank());
  tell(memory, 1, reinterpret_cast<std::uintptr_t>(values.data()));
  const int peer = (memory.rank() + 1) % memory.size();
  const int before = (memory.rank() + memory.size() - 1) % memory.size();
  const std::uint64_t remote = hear(memory, peer, 1);
  std::vector<int> read(count);
  expect_ok(memory.read_from(peer, read.data(), remote, count * sizeof(int)), "reading");
  expect(read == std::vector<int>(count, peer), "what was read");
  meet(memory, 2);
  const std::vector<int> written(count, 10 + memory.rank());
  expect_ok(memory.write_to(peer, written.data(), remote, count * sizeof(int)), "writing");
  meet(memory, 3);
  expect(values == std::vector<int>(count, 10 + before), "what was written");
}

}  // namespace

TEST_CASE("processes read and write each other's memory") {
  // The system decides whether they may, and decides the same for all.
  CHECK(succeeds_on(3, [](HostMemory& memory) {
    if (memory.has_direct_access()) return read_and_write_a_peer(memory);
    expect(contains(memory.no_direct_access(), "cannot read the memory of rank"), "the reason");
  }));
}

TEST_CASE("where one rank may not, all ranks know and name it") {
  CHECK(succeeds_on(
      3,
      [](HostMemory& memory) {
        expect(!memory.has_direct_access(), "it is forbidden");
        const Status& reason = memory.no_direct_access();
        expect(contains(reason, "Operation not permitted") && contains(reason, "rank 1 cannot"),
               reason.to_string());
        int value = 0;
        if (memory.rank() == 1) {
          expect(!memory.read_from(0, &value, 4096, 4).ok(), "reading is refused");
          expect(!memory.write_to(0, &value, 4096, 4).ok(), "writing is refused");
        }
        meet(memory, 1);  // everything else works
      },
      [](int rank) {
        if (rank == 1) forbid({SYS_process_vm_readv, SYS_process_vm_writev}, EPERM);
      }));
  CHECK(succeeds_on(
      2,
      [](HostMemory& memory) {
        expect(contains(memory.no_direct_access(), "write"), "reading alone is not enough");
      },
      [](int) { forbid({SYS_process_vm_writev}, EPERM); }));
}

TEST_CASE("registered tensors are one memory for all processes") {
  CHECK(succeeds_on(2, [](HostMemory& memory) {
    RegisteredMemory& own = *RegisteredMemory::of_process().value();
    constexpr std::size_t bytes = 4 * huge_page;
    const auto tensor = own.allocate(bytes);
    std::memset(tensor.get(), memory.rank() + 1, bytes);
    tell(memory, 1, memory.registered(tensor.get(), bytes).value());
    const int peer = 1 - memory.rank();
    std::byte* theirs = memory.registered_of(peer, hear(memory, peer, 1));
    for (std::size_t at = 0; at < bytes; at += 1000) {
      expect(theirs[at] == static_cast<std::byte>(peer + 1), "what the peer wrote");
    }
    if (own.huge_page_bytes() >= bytes) {
      expect(kilobytes_of_mappings("ShmemPmdMapped") * 1024 >= 2 * bytes,
             "huge pages here and there");
    }
    meet(memory, 2);
    theirs[77] = std::byte{9};
    meet(memory, 3);
    expect(tensor[77] == std::byte{9}, "what was written there is here");
  }));
}

TEST_CASE("a rank sleeps until another process wakes it") {
  CHECK(succeeds_on(2, [](HostMemory& memory) {
    for (std::uint32_t round = 1; round <= 200; ++round) {
      const std::uint32_t turn = 2 * round + static_cast<std::uint32_t>(memory.rank());
      auto& own = memory.header(memory.rank());
      if (memory.rank() == 0) {
        memory.header(1).world_end = turn + 1;
        wake(memory.header(1).wake);
      }
      {
        const std::uint32_t wanted = memory.rank() == 0 ? turn + 2 : turn;
        Sleeper sleeper(own.wake);
        while (own.world_end != wanted) {
          expect(sleeper.sleep(soon()) != FutexWake::timeout, "a wake-up that comes");
        }
      }
      if (memory.rank() == 1) {
        memory.header(0).world_end = turn + 1;
        wake(memory.header(0).wake);
      }
    }
    meet(memory, 1);
  }));
}

TEST_CASE("a process that has ended is known to have, before it is waited for") {
  Processes ranks(2, [](Bootstrap& bootstrap) {
    const auto memory = HostMemory::form(bootstrap, soon()).value();
    expect(!memory->has_ended(0) && !memory->has_ended(1), "both live");
    meet(*memory, 1);
    if (memory->rank() == 1) ::kill(::getpid(), SIGKILL);
    await([&] { return memory->has_ended(1); }, "the end of rank 1");
    expect(!memory->has_ended(0), "this process lives");
    int value = 0;
    const Status gone = memory->read_from(1, &value, 4096, 4);
    expect(!gone.ok() && gone.peer() == 1, "nothing can be read any more");
  });
  CHECK(ranks.end_of(0) == 0);  // rank 1 is a zombie until then
  CHECK(ranks.end_of(1) == -1);
}

TEST_CASE("without descriptors of processes, the end of one shows when it was waited for") {
  Processes ranks(2, [](Bootstrap& bootstrap) {
    if (bootstrap.rank() == 0) forbid({SYS_pidfd_open}, ENOSYS);
    const auto memory = HostMemory::form(bootstrap, soon()).value();
    expect(!memory->has_ended(0) && !memory->has_ended(1), "both live");
    meet(*memory, 1);
    if (memory->rank() == 0) await([&] { return memory->has_ended(1); }, "the end of rank 1");
  });
  CHECK(ranks.end_of(1) == 0);
  CHECK(ranks.end_of(0) == 0);
}

TEST_CASE("a process that wants a processor is told from one that sleeps or is stopped") {
  CHECK(succeeds_on(2, [](HostMemory& memory) {
    expect(memory.process_of(memory.rank()) == -1, "of itself a process asks nothing");
    if (memory.rank() == 0) {
      const int peer = memory.process_of(1);
      expect(peer > 0, "the peer is seen");
      await([&] { return is_runnable(peer); }, "a loop");
      tell(memory, 1, 0);
      await([&] { return !is_runnable(peer); }, "a sleep");
      expect(::kill(peer, SIGCONT) == 0, "waking");
      await([&] { return is_runnable(peer); }, "the loop again");
      expect(::kill(peer, SIGSTOP) == 0, "stopping");
      await([&] { return !is_runnable(peer); }, "the stop");
      expect(::kill(peer, SIGCONT) == 0, "going on");
      await([&] { return is_runnable(peer); }, "the loop after that");
      tell(memory, 2, 0);
    } else {
      ::signal(SIGCONT, [](int) {});
      while (memory.find(0, 1) == nullptr) continue;
      ::pause();
      while (memory.find(0, 2) == nullptr) continue;
    }
    meet(memory, 3);
    expect(!is_runnable(-1) && !is_runnable(1 << 30), "who is not there");
  }));
}

TEST_CASE("nothing is left of ranks that are killed") {
  {
    Processes ranks(2, [](Bootstrap& bootstrap) {
      // Rank 0 serves the rendezvous and from here on holds connections to all ranks.
      expect_ok(bootstrap.allgather("test/entered", std::string(), soon()).status(), "entering");
      const std::size_t before = open_descriptors();
      const auto memory = HostMemory::form(bootstrap, soon()).value();
      // The registered memory, this rank's life line and, for each rank, its process, its life line
      // and its wake descriptor. Files of peers are only mapped.
      expect(open_descriptors() <= before + 8, "descriptors are closed");
      const auto tensor = allocate(100);
      static_cast<void>(memory->publish(2, huge_page));
      meet(*memory, 1);
      ::kill(::getpid(), SIGKILL);
    });
    CHECK(ranks.end_of(0) == -1);
    CHECK(ranks.end_of(1) == -1);
  }
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", none)) {
    CHECK(entry.path().filename().string().find("rueda") == std::string::npos);
  }
}

TEST_CASE("a rank without means is named to all, and none waits") {
  const auto all_name_rank_1 = [](const std::string& reason, const std::function<void()>& cripple) {
    return Processes(3,
                     [&](Bootstrap& bootstrap) {
                       if (bootstrap.rank() == 1) cripple();
                       const Status status = HostMemory::form(bootstrap, soon()).status();
                       expect(status.code() == ErrorCode::initialization, "a failure to begin");
                       expect(contains(status, "rank 1") && contains(status, reason),
                              status.to_string());
                       const auto tensor = allocate(std::size_t{3} << 20);
                       expect(tensor[0] == std::byte{}, "memory of some kind");
                     })
        .all_succeed();
  };
  CHECK(all_name_rank_1("File too large", [] {
    const rlimit tiny{1 << 20, 1 << 20};
    expect(::setrlimit(RLIMIT_FSIZE, &tiny) == 0, "a limit");
  }));
  CHECK(all_name_rank_1("Function not implemented", [] { forbid({SYS_memfd_create}, ENOSYS); }));
}

TEST_CASE("tight limits that leave room are kept to") {
  CHECK(succeeds_on(
      3, [](HostMemory& memory) { meet(memory, 1); },
      [](int) {
        const rlimit files{std::size_t{80} << 20, std::size_t{80} << 20};
        const rlimit nothing{0, 0};
        expect(::setrlimit(RLIMIT_FSIZE, &files) == 0, "a limit of files");
        expect(::setrlimit(RLIMIT_MEMLOCK, &nothing) == 0, "a limit of locked memory");
        const rlimit addresses{std::size_t{4} << 30, std::size_t{4} << 30};
        expect(!can_limit_addresses || ::setrlimit(RLIMIT_AS, &addresses) == 0, "of addresses");
      }));
}

TEST_CASE("a child of a rank sees no peers, and its end is not the rank's") {
  CHECK(succeeds_on(2, [](HostMemory& memory) {
    const auto tensor = allocate(100);
    tensor[0] = std::byte{5};
    expect(exit_code_of([&] { expect(tensor[0] == std::byte{5}, "the tensor is there"); }) == 0,
           "a child that ends well");
    meet(memory, 1);
    expect(!memory.has_ended(1 - memory.rank()), "the rank lives");
    meet(memory, 2);
  }));
}

}  // namespace rueda::test::host_processes_test
