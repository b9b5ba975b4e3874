// Stands in for NCCL: ranks are threads of one process that meet by unique id, each with a device
// of the CUDA double. Operations wait for the other ranks in their streams, check that all agree,
// and move real bytes. A call of two ranks and more takes a time at random before its work is in
// the stream; of a communicator that does not block it returns at once, and a thread of the
// double's launches. One rank alone copies, or does nothing in place, as NCCL does: what that costs
// says nothing about two.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/nccl/nccl_api.h"

namespace rueda::test {

struct NcclSettings {
  int version = 22703;       // read when the library is loaded
  int max_call_us = 300;     // of two ranks and more: how long a call takes before it launches
  int max_running = 1024;    // operations of a communicator in streams; more make a call wait
  double wait_timeout = 20;  // seconds that an operation waits for other ranks
  bool symmetric = true;     // the GPUs reach each other as windows need it
};

// What was called, with what. Unused fields are 0.
struct NcclCall {
  std::string function;
  int rank = 0;
  std::uint64_t count = 0;
  int dtype = 0;
  int op = 0;    // of ncclCommInitRankConfig: whether it blocks
  int peer = 0;  // or root
  bool in_group = false;

  bool operator==(const NcclCall&) const = default;
};

class NcclDouble {
 public:
  // Forgets everything but the communicators that are still there.
  virtual void reset(const NcclSettings& settings = {}) = 0;
  // In the order in which this rank made them.
  virtual std::vector<NcclCall> calls(int rank) = 0;
  // The `nth` call of `function` by `rank` from now on (1 is the next) returns `code`, and NCCL's
  // last error is `text`.
  virtual void fail(const std::string& function, int rank, int nth, nccl::Result code,
                    const std::string& text) = 0;
  // All communicators of `rank` fail behind its back.
  virtual void break_communicators(int rank, nccl::Result code, const std::string& text) = 0;
  // The next operation of `rank` never meets the others, until its communicator is aborted.
  virtual void hang(int rank) = 0;
  // The next collective of `rank` does not return to its caller until its communicator is aborted.
  virtual void block(int rank) = 0;
  virtual int blocked_calls() = 0;  // at this moment
  // While they are held, calls of two ranks and more do not return. Released by reset().
  virtual void hold_calls(bool held) = 0;
  // The processes that connecting ranks wait for have ended.
  virtual void end_connecting() = 0;
  virtual int connecting() = 0;  // ranks that wait for others
  // How many calls have waited for the GPU because too many operations were running.
  virtual int back_pressured_calls() = 0;
  virtual std::vector<std::string> take_misuse() = 0;
  virtual int communicators() = 0;  // not destroyed
  virtual int registrations() = 0;

 protected:
  ~NcclDouble() = default;
};

}  // namespace rueda::test

extern "C" rueda::test::NcclDouble* rueda_nccl_double();
