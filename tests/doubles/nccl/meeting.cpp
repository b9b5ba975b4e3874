#include "meeting.h"

#include <cstring>

#include "core/strings.h"
#include "reduce/element.h"

namespace rueda::test {

namespace {

DataType type_of(nccl::DataTypeNumber dtype) {
  switch (dtype) {
    case nccl::int8: return DataType::int8;
    case nccl::uint8: return DataType::uint8;
    case nccl::int32: return DataType::int32;
    case nccl::uint32: return DataType::uint32;
    case nccl::int64: return DataType::int64;
    case nccl::uint64: return DataType::uint64;
    case nccl::float16: return DataType::float16;
    case nccl::float32: return DataType::float32;
    case nccl::float64: return DataType::float64;
    case nccl::bfloat16: return DataType::bfloat16;
  }
  throw std::runtime_error("an element type that NCCL does not have");
}

template <class Value>
Value combined(int op, Value a, Value b) {
  switch (op) {
    case nccl::prod: return static_cast<Value>(a * b);
    case nccl::max: return a < b ? b : a;
    case nccl::min: return b < a ? b : a;
    default: return static_cast<Value>(a + b);
  }
}

using Parts = std::vector<std::optional<Collective>>;

// Element `index` of all ranks' inputs, in the order of the ranks.
template <class Element>
typename Element::Value reduced(const Parts& parts, std::int64_t index) {
  using Value = typename Element::Value;
  const auto input = [&](const Collective& part) { return load<Element>(part.input, index); };
  Value value = input(*parts[0]);
  for (std::size_t rank = 1; rank < parts.size(); ++rank)
    value = combined(parts[0]->op, value, input(*parts[rank]));
  return value;
}

std::vector<std::byte> reduction(const Parts& parts, std::size_t count) {
  const DataType dtype = type_of(parts[0]->dtype);
  std::vector<std::byte> result(count * size_of(dtype));
  with_element(dtype, [&](auto element) {
    using Element = decltype(element);
    if constexpr (std::is_arithmetic_v<typename Element::Value>) {
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(count); ++i)
        store<Element>(result.data(), i, reduced<Element>(parts, i));
    }
  });
  return result;
}

void move_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

}  // namespace

std::size_t bytes_of(nccl::DataTypeNumber dtype) {
  return size_of(type_of(dtype));
}

std::string Collective::signature() const {
  return str(function, " of ", count, " of type ", static_cast<int>(dtype), ", operation ", op,
             ", root ", root);
}

void Meeting::join() {
  const std::lock_guard lock(mutex_);
  ++joined_;
}

bool Meeting::is_complete() {
  const std::lock_guard lock(mutex_);
  return joined_ >= size_;
}

template <class Condition>
std::string Meeting::wait(std::unique_lock<std::mutex>& lock, Duration longest,
                          const GivesUp& gives_up, const std::string& awaited,
                          const Condition& holds) {
  const Time deadline = Clock::now() + longest;
  while (!holds()) {
    if (gives_up()) return "given up";
    if (Clock::now() >= deadline) return str("waited in vain for ", awaited);
    changed_.wait_until(lock, Clock::now() + std::chrono::milliseconds(1));
  }
  return {};
}

std::string Meeting::take_part(std::uint64_t number, int rank, const Collective& collective,
                               Duration longest, const GivesUp& gives_up) {
  std::unique_lock lock(mutex_);
  Round& round = rounds_[number];
  round.parts.resize(static_cast<std::size_t>(size_));
  round.parts[static_cast<std::size_t>(rank)] = collective;
  if (++round.arrived == round.parts.size()) {
    round.problem = perform(round);
    round.done = true;
    changed_.notify_all();
  }
  const std::string missed =
      wait(lock, longest, gives_up, str("the others in ", collective.function),
           [&] { return round.done; });
  if (!missed.empty()) {
    // Nobody may touch its memory any more.
    round.parts[static_cast<std::size_t>(rank)].reset();
    --round.arrived;
    return missed;
  }
  const std::string problem = round.problem;
  if (++round.left == round.parts.size()) rounds_.erase(number);
  return problem;
}

std::string Meeting::perform(Round& round) const {
  const Collective& first = *round.parts[0];
  for (std::size_t rank = 1; rank < round.parts.size(); ++rank) {
    if (round.parts[rank]->signature() != first.signature())
      return str("ranks disagree: rank 0 has called ", first.signature(), ", rank ", rank, " ",
                 round.parts[rank]->signature());
  }
  const std::size_t bytes = first.count * bytes_of(first.dtype);
  const auto size = round.parts.size();
  if (first.function == "ncclBroadcast") {
    const auto* source = round.parts[static_cast<std::size_t>(first.root)]->input;
    const std::vector<std::byte> content(source, source + bytes);
    for (auto& part : round.parts) move_bytes(part->output, content.data(), bytes);
  } else if (first.function == "ncclAllGather") {
    std::vector<std::byte> content;
    for (auto& part : round.parts) content.insert(content.end(), part->input, part->input + bytes);
    for (auto& part : round.parts) move_bytes(part->output, content.data(), content.size());
  } else {
    const bool scatters = first.function == "ncclReduceScatter";
    const auto result = reduction(round.parts, scatters ? first.count * size : first.count);
    for (std::size_t rank = 0; rank < size; ++rank) {
      if (first.function == "ncclReduce" && rank != static_cast<std::size_t>(first.root)) continue;
      move_bytes(round.parts[rank]->output, result.data() + (scatters ? rank * bytes : 0), bytes);
    }
  }
  return {};
}

void Meeting::send(int from, int to, std::vector<std::byte> content) {
  const std::lock_guard lock(mutex_);
  messages_[{from, to}].push_back({std::move(content)});
  changed_.notify_all();
}

std::string Meeting::receive(int from, int to, std::byte* memory, std::size_t bytes,
                             Duration longest, const GivesUp& gives_up) {
  std::unique_lock lock(mutex_);
  auto& queue = messages_[{from, to}];
  std::string problem = wait(lock, longest, gives_up, str("a message of rank ", from),
                             [&] { return !queue.empty(); });
  if (!problem.empty()) return problem;
  const Message message = std::move(queue.front());
  queue.pop_front();
  if (message.content.size() != bytes)
    return str("rank ", from, " has sent ", message.content.size(), " bytes, rank ", to,
               " receives ", bytes);
  move_bytes(memory, message.content.data(), bytes);
  return {};
}

}  // namespace rueda::test
