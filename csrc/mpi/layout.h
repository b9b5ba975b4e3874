// Describes a slice of scattered memory as an MPI buffer, count and datatype.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace rueda::mpi {

class Layout {
 public:
  // Bytes [skip, skip + length) of the concatenated `segments`, each with an address and a length.
  template <class Segments>
  Layout(const Segments& segments, std::size_t skip, std::size_t length) {
    for (const auto& segment : segments) {
      if (length == 0) break;
      const std::size_t skipped = std::min(skip, segment.length);
      skip -= skipped;
      const std::size_t taken = std::min(segment.length - skipped, length);
      if (taken == 0) continue;
      lengths_.push_back(static_cast<int>(taken));
      addresses_.push_back(reinterpret_cast<MPI_Aint>(segment.address + skipped));
      length -= taken;
    }
    if (lengths_.size() > 1) {
      status_ = MPI_Type_create_hindexed(static_cast<int>(lengths_.size()), lengths_.data(),
                                         addresses_.data(), MPI_BYTE, &type_);
      if (status_ == MPI_SUCCESS) status_ = MPI_Type_commit(&type_);
    }
  }
  // MPI keeps a datatype until the operations that use it are done.
  ~Layout() {
    if (type_ != MPI_BYTE && type_ != MPI_DATATYPE_NULL) MPI_Type_free(&type_);
  }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;

  [[nodiscard]] int status() const { return status_; }
  [[nodiscard]] MPI_Datatype type() const { return type_; }
  [[nodiscard]] void* buffer() const {
    return lengths_.size() == 1 ? reinterpret_cast<void*>(addresses_.front()) : MPI_BOTTOM;
  }
  [[nodiscard]] int count() const {
    if (lengths_.empty()) return 0;
    return lengths_.size() == 1 ? lengths_.front() : 1;
  }

 private:
  std::vector<int> lengths_;
  std::vector<MPI_Aint> addresses_;
  MPI_Datatype type_ = MPI_BYTE;
  int status_ = MPI_SUCCESS;
};

}  // namespace rueda::mpi
