// An allreduce whose contributions and results travel encoded.
//
// Each rank encodes what it has of the others' segments and sends it straight to their owners. An
// owner decodes and adds in float32 in the order of the ranks, encodes the result once, and sends
// that to all; every rank, the owner too, takes the decoded bits of that one encoding. So all ranks
// hold the same bits, and each value is rounded once on its way to its owner and once on its way
// back, however many ranks there are (Wang et al., "ZeRO++", 2023, section 3.3, qgZ). A rank sends
// 2(P-1)/P of the elements, as around a ring.
#pragma once

#include <deque>
#include <vector>

#include "backend/backend.h"
#include "backend/compressed_mail.h"
#include "backend/compressed_tensors.h"

namespace rueda {

// Chunk by chunk: at time t this rank sends its contributions to chunk t of all other segments, and
// then the result of its own chunk t - result_lag. Nobody waits for more than for what all ranks
// send at an earlier time, so some rank can always go on.
class CompressedAllreduce : public Operation {
 public:
  // Requires reduction.compression for floating-point elements that are summed up or averaged.
  // `report` is told by all ranks alike whose results are of no use, and by some what contributions
  // are. Throws std::bad_alloc.
  CompressedAllreduce(const Lane& lane, const Reduction& reduction, std::vector<Piece> pieces,
                      ReportFault report);

  // Encodes or decodes one chunk at most, so that the transport gets on with its work in between.
  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }
  [[nodiscard]] const Status& status() const override { return status_; }
  [[nodiscard]] std::vector<int> awaited() const override;

 private:
  struct Peer {
    int rank;  // within the set
    CompressedOutbox outbox;
    CompressedInbox inbox;
    std::int64_t results_taken = 0;  // empty chunks count, too
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
  std::deque<Peer> peers_;  // beginning with the next rank; they stay where they are
  ChunkBuffers buffers_;
  std::vector<float> sum_;  // of one chunk
  std::vector<float> own_;  // this rank's part of it
  std::int64_t time_ = 0;
  std::size_t served_ = 0;      // peers that have their contribution of this time
  std::int64_t reduced_ = 0;    // own chunks
  std::deque<Result> results_;  // of own chunks that wait for their time
  bool done_ = false;
  Status status_;
};

// The whole of it: what became of a piece is told with the ranks that have contributed what the
// codec cannot hold.
[[nodiscard]] std::unique_ptr<Operation> compressed_allreduce(const Lane& lane,
                                                              const Reduction& reduction,
                                                              std::vector<Piece> pieces);

}  // namespace rueda
