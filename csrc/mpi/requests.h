// Requests in MPI's hands, each with an owner.
#pragma once

#include <mpi.h>

#include <utility>
#include <vector>

#include "core/clock.h"

namespace rueda::mpi {

template <class Owner>
class Requests {
 public:
  [[nodiscard]] bool empty() const { return requests_.empty(); }
  void add(MPI_Request request, Owner& owner) {
    requests_.push_back(request);
    owners_.push_back(&owner);
  }
  // Calls `done(owner, code)`, with MPI's code, for each completed request; returns whether any
  // was.
  template <class Done>
  bool collect(const Done& done);
  // Waits for the requests of the concerned owners, without reporting them; returns how many are
  // left at the deadline.
  template <class Concerned>
  [[nodiscard]] std::size_t wait_for(const Concerned& concerned, Time deadline) const;
  // Abandons the requests of the concerned owners to MPI.
  template <class Concerned>
  void forget(const Concerned& concerned);

 private:
  template <class Done>
  bool collect_one_by_one(const Done& done);
  void forget_at(std::size_t index);

  // Parallel arrays.
  std::vector<MPI_Request> requests_;
  std::vector<Owner*> owners_;
  // Outputs of MPI_Testsome.
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

template <class Owner>
template <class Done>
bool Requests<Owner>::collect(const Done& done) {
  if (requests_.empty()) return false;
  indices_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int found = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &found,
                                indices_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) return collect_one_by_one(done);
  if (found == MPI_UNDEFINED || found <= 0) return false;
  for (int i = 0; i < found; ++i) {
    const auto index = static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)]);
    const int error = statuses_[static_cast<std::size_t>(i)].MPI_ERROR;
    done(*std::exchange(owners_[index], nullptr), code == MPI_SUCCESS ? code : error);
  }
  for (std::size_t index = requests_.size(); index-- > 0;) {
    if (owners_[index] == nullptr) forget_at(index);
  }
  return true;
}

// For when MPI_Testsome itself failed, without saying for which request.
template <class Owner>
template <class Done>
bool Requests<Owner>::collect_one_by_one(const Done& done) {
  bool moved = false;
  for (std::size_t index = requests_.size(); index-- > 0;) {
    int is_done = 0;
    const int code = MPI_Test(&requests_[index], &is_done, MPI_STATUS_IGNORE);
    if (code == MPI_SUCCESS && is_done == 0) continue;
    Owner& owner = *owners_[index];
    forget_at(index);
    done(owner, code);
    moved = true;
  }
  return moved;
}

template <class Owner>
template <class Concerned>
std::size_t Requests<Owner>::wait_for(const Concerned& concerned, Time deadline) const {
  std::vector<MPI_Request> left;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (concerned(*owners_[i])) left.push_back(requests_[i]);
  }
  const auto is_over = [](MPI_Request& request) {
    int done = 0;
    return MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
  };
  do {
    std::erase_if(left, is_over);
  } while (!left.empty() && Clock::now() < deadline);
  return left.size();
}

template <class Owner>
template <class Concerned>
void Requests<Owner>::forget(const Concerned& concerned) {
  for (std::size_t index = requests_.size(); index-- > 0;) {
    if (concerned(*owners_[index])) forget_at(index);
  }
}

template <class Owner>
void Requests<Owner>::forget_at(std::size_t index) {
  requests_[index] = requests_.back();
  owners_[index] = owners_.back();
  requests_.pop_back();
  owners_.pop_back();
}

}  // namespace rueda::mpi
