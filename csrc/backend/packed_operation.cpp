#include "backend/packed_operation.h"

#include <utility>

namespace rueda {

PackedOperation::PackedOperation(BufferPool& pool, std::size_t bytes, const Copy& pack,
                                 const Start& start, Copy unpack)
    : pool_(pool), unpack_(std::move(unpack)) {
  const Time begin = Clock::now();
  scratch_ = pool_.take(bytes);
  pack(scratch_.bytes.get());
  const Time packed = Clock::now();
  phases_.push_back({"PACK", begin, packed});
  phases_.push_back({"RING", packed, packed});
  inner_ = start(scratch_.bytes.get());
}

PackedOperation::~PackedOperation() {
  inner_.reset();
  pool_.give_back(std::move(scratch_));
}

bool PackedOperation::advance() {
  if (done_) return false;
  const bool moved = inner_->advance();
  if (!inner_->done()) return moved;
  done_ = true;
  if (!inner_->status().ok()) return true;
  phases_.back().end = Clock::now();
  unpack_(scratch_.bytes.get());
  phases_.push_back({"UNPACK", phases_.back().end, Clock::now()});
  return true;
}

}  // namespace rueda
