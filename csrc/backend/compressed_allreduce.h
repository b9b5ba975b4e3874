// An allreduce whose contributions and results are encoded for transfer.
//
// Each rank encodes its share of every segment and sends it straight to the segment's owner. The
// owner decodes the contributions, adds them in float32 in rank order, encodes the sum once, and
// sends that to all. Every rank, including the owner, uses the decoded bits of that one encoding,
// so all ranks hold the same bits. Each value is rounded once on its way to its owner and once on
// its way back, whatever the number of ranks (Wang et al., "ZeRO++", 2023, section 3.3, qgZ). A
// rank sends 2(P-1)/P of the elements, as around a ring.
#pragma once

#include <deque>
#include <vector>

#include "backend/backend.h"
#include "backend/compressed_mail.h"
#include "backend/compressed_tensors.h"

namespace rueda {

// Works chunk by chunk: at time t this rank sends its contributions to chunk t of all other
// segments, then the result of its own chunk t - result_lag. A rank only ever waits for what others
// send at earlier times, so some rank can always proceed.
class CompressedAllreduce : public Operation {
 public:
  // Requires reduction.compression, and a sum or average of floating-point elements. `report` is
  // called on all ranks for unusable results, and on some ranks for the contributions responsible.
  // Throws std::bad_alloc.
  CompressedAllreduce(const Lane& lane, const Reduction& reduction, std::vector<Piece> pieces,
                      ReportFault report);

  // Encodes or decodes at most one chunk per call, so that the transport makes progress in between.
  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override;

 private:
  struct Peer {
    int rank;  // within the set
    CompressedOutbox outbox;
    CompressedInbox inbox;
    std::int64_t results_taken = 0;  // includes empty chunks
  };
  struct Result {
    EncodedChunk chunk;  // null where the chunk is empty
    std::size_t bytes = 0;
  };

  [[nodiscard]] const CompressedLayout& layout() const { return tensors_.layout(); }
  bool move_messages();
  bool reduce_own_chunk();
  void add_contribution(int rank, const CompressedChunk& chunk);
  bool take_a_result();
  bool send_next();
  bool send_contribution(Peer& peer);
  bool send_result();
  [[nodiscard]] bool is_over() const;
  void fail(const Status& status);
  void fail_malformed(int rank);

  Lane lane_;
  CompressedTensors tensors_;
  std::deque<Peer> peers_;  // starts with the next rank; addresses are stable
  ChunkBuffers buffers_;
  std::vector<float> sum_;  // of one chunk
  std::vector<float> own_;  // this rank's contribution to it
  std::int64_t time_ = 0;
  std::size_t served_ = 0;      // peers sent this time's contribution
  std::int64_t reduced_ = 0;    // own chunks
  std::deque<Result> results_;  // of own chunks, not yet due
  bool done_ = false;
  Status status_;
};

// The complete operation. A piece's status names the ranks that contributed values which the codec
// cannot hold.
[[nodiscard]] std::unique_ptr<Operation> compressed_allreduce(const Lane& lane,
                                                              const Reduction& reduction,
                                                              std::vector<Piece> pieces);

}  // namespace rueda
