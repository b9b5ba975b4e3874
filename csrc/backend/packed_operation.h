// An operation on a scratch buffer: data from several places is packed into it, and the result is
// unpacked from it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/buffer_pool.h"

namespace rueda {

class PackedOperation : public Operation {
 public:
  using Start = std::function<std::unique_ptr<Operation>(std::byte* buffer)>;
  using Copy = std::function<void(std::byte* buffer)>;

  // Packs and starts immediately; unpacks once the inner operation has succeeded. Throws
  // std::bad_alloc.
  PackedOperation(BufferPool& pool, std::size_t bytes, const Copy& pack, const Start& start,
                  Copy unpack);
  ~PackedOperation() override;

  bool advance() override;
  [[nodiscard]] bool done() const override { return done_; }
  [[nodiscard]] const Status& status() const override { return inner_->status(); }
  [[nodiscard]] std::vector<int> awaited() const override { return inner_->awaited(); }
  [[nodiscard]] bool uses_transport() const override { return inner_->uses_transport(); }
  [[nodiscard]] std::vector<Phase> phases() const override { return phases_; }

 private:
  BufferPool& pool_;
  PooledBuffer scratch_;
  Copy unpack_;
  std::unique_ptr<Operation> inner_;
  std::vector<Phase> phases_;
  bool done_ = false;
};

}  // namespace rueda
