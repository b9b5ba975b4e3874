#include "plan/request.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/strings.h"
#include "rueda/leaves.h"

namespace rueda {

namespace {

// The extents that ranks must share: all of them, except the first if each rank has its own.
Shape shared_extents(const Request& request) {
  const bool own_first =
      request.collective == Collective::allgather || request.collective == Collective::alltoall;
  if (!own_first || request.shape.empty()) return request.shape;
  return {request.shape.begin() + 1, request.shape.end()};
}

std::string grouping(const Request& request) {
  return request.group.empty() ? "none" : str(request.group, " of ", request.group_size);
}

std::string list_of(const std::vector<int>& ranks) {
  return to_string(Shape(ranks.begin(), ranks.end()));
}

std::string device_of(const Request& request) {
  return request.on_gpu ? "a GPU" : "the CPU";
}

std::string wire_of(const Request& request) {
  return std::string(name_of(request.wire.value_or(request.dtype)));
}

std::string compression_of(const Request& request) {
  const Compression& compression = request.compression;
  const std::string_view name = name_of(compression.codec);
  return is_sparse(compression.codec) ? str(name, " of ", compression.fraction) : std::string(name);
}

std::string leaves_of(const Request& request) {
  if (request.leaf_ranks.empty()) return "none";
  return str(request.leaf_ranks.size(), " of ranks ", list_of(request.leaf_ranks));
}

bool reduces(Collective collective) {
  return collective == Collective::allreduce || collective == Collective::reduce_scatter ||
         collective == Collective::persistent_allreduce;
}

// Whether `splits` add up to `rows`, without adding numbers that may overflow.
bool divide(const std::vector<std::int64_t>& splits, std::int64_t rows) {
  for (const std::int64_t split : splits) {
    if (split < 0 || split > rows) return false;
    rows -= split;
  }
  return rows == 0;
}

Status validate_splits(const Request& request, int set_size) {
  if (request.collective != Collective::reduce_scatter || request.splits.empty()) return {};
  if (request.splits.size() == static_cast<std::size_t>(set_size) &&
      divide(request.splits, request.shape.front())) {
    return {};
  }
  return {
      ErrorCode::invalid_argument,
      str("splits ", to_string(request.splits), " must be ", set_size,
          " non-negative numbers that add up to the first extent of ", to_string(request.shape))};
}

Status validate_wire(const Request& request) {
  const bool converts = request.collective == Collective::allreduce ||
                        (request.collective == Collective::persistent_allreduce && request.on_gpu);
  if (!request.wire || (converts && can_travel_as(*request.wire, request.dtype))) return {};
  return {ErrorCode::unsupported,
          str(name_of(request.collective), " of ", name_of(request.dtype), " cannot travel as ",
              name_of(*request.wire),
              ": only an allreduce of float32 or float64 can (a persistent one only on GPUs), as a "
              "narrower floating-point type")};
}

Status validate_compression(const Request& request) {
  const auto refuse = [&](ErrorCode code, const auto&... parts) {
    return Status(code, str("compression ", compression_of(request), parts...));
  };
  const Compression& compression = request.compression;
  if (compression.codec == CodecKind::none) return {};
  if (request.collective != Collective::allreduce) {
    return refuse(ErrorCode::unsupported, ": only an allreduce can be compressed, not a ",
                  name_of(request.collective));
  }
  if (info(request.dtype).kind != DataKind::floating) {
    return refuse(ErrorCode::unsupported, ": ", name_of(request.dtype),
                  " cannot be compressed, only floating-point numbers can");
  }
  if (request.op != ReduceOp::sum && request.op != ReduceOp::average) {
    return refuse(ErrorCode::unsupported, ": only a sum or an average can be compressed, not ",
                  name_of(request.op));
  }
  if (request.on_gpu) {
    return refuse(ErrorCode::unsupported, ": only tensors on the CPU can be compressed");
  }
  if (request.wire) {
    return refuse(ErrorCode::unsupported, " and the wire dtype ", name_of(*request.wire),
                  " exclude each other");
  }
  const bool has_fraction = compression.fraction > 0 && compression.fraction <= 1;
  if (is_sparse(compression.codec) ? !has_fraction : compression.fraction != 0) {
    return refuse(ErrorCode::invalid_argument, ": the fraction ", compression.fraction,
                  is_sparse(compression.codec) ? " must be above 0 and at most 1"
                                               : " does not apply to this codec");
  }
  return {};
}

Status validate_leaves(const Request& request, int set_size) {
  const std::vector<int>& ranks = request.leaf_ranks;
  if (ranks.empty()) return {};
  const auto refuse = [&](ErrorCode code, const auto&... parts) {
    return Status(code, str(parts...));
  };
  if (request.collective != Collective::allreduce) {
    return refuse(ErrorCode::unsupported, "only an allreduce can have leaves, not a ",
                  name_of(request.collective));
  }
  if (ranks.size() > max_leaves) {
    return refuse(ErrorCode::invalid_argument, ranks.size(), " leaves are too many: at most ",
                  max_leaves, " are possible");
  }
  for (std::size_t leaf = 0; leaf < ranks.size(); ++leaf) {
    if (ranks[leaf] >= 0 && ranks[leaf] < set_size) continue;
    return refuse(ErrorCode::invalid_argument, "leaf ", leaf, " is rank ", ranks[leaf],
                  "'s, which is not in the process set, whose ranks are 0 to ", set_size - 1);
  }
  if (request.on_gpu) {
    return refuse(ErrorCode::unsupported, "leaves need tensors on the CPU");
  }
  if (request.wire || request.compression.codec != CodecKind::none) {
    return refuse(ErrorCode::unsupported, "an allreduce of leaves cannot be compressed");
  }
  if (request.prescale != 1.0) {
    return refuse(ErrorCode::unsupported, "partial sums of leaves cannot be scaled by ",
                  request.prescale, " before they are added up: scale the result");
  }
  return {};
}

// Whether the number of bytes fits a std::int64_t, even if an extent of 0 follows large ones.
bool fits(const Shape& shape, DataType dtype) {
  std::int64_t rest =
      std::numeric_limits<std::int64_t>::max() / static_cast<std::int64_t>(size_of(dtype));
  for (const std::int64_t extent : shape) {
    if (extent > 0) rest /= extent;
  }
  return rest > 0;
}

// Bits count, so that ranks end with the same ones, but no rank differs from another by NaN, which
// all refuse.
bool factors_differ(double left, double right) {
  if (std::isnan(left) && std::isnan(right)) return false;
  return std::bit_cast<std::uint64_t>(left) != std::bit_cast<std::uint64_t>(right);
}

}  // namespace

std::string flaw_of(const Shape& shape, DataType dtype) {
  for (const std::int64_t extent : shape) {
    if (extent < 0) return str("negative extent in ", to_string(shape));
  }
  if (fits(shape, dtype)) return {};
  return str(to_string(shape), " of ", name_of(dtype), " is more than can be addressed");
}

std::size_t Request::row_bytes() const {
  std::size_t bytes = size_of(dtype);
  for (std::size_t i = 1; i < shape.size(); ++i) bytes *= static_cast<std::size_t>(shape[i]);
  return bytes;
}

std::string_view name_of(Collective collective) {
  switch (collective) {
    case Collective::allreduce: return "allreduce";
    case Collective::allgather: return "allgather";
    case Collective::broadcast: return "broadcast";
    case Collective::reduce_scatter: return "reduce_scatter";
    case Collective::alltoall: return "alltoall";
    case Collective::barrier: return "barrier";
    case Collective::join: return "join";
    case Collective::add_process_set: return "add_process_set";
    case Collective::remove_process_set: return "remove_process_set";
    case Collective::persistent_allreduce: return "persistent allreduce";
    case Collective::leave: return "shutdown";
  }
  return "unknown";
}

bool has_tensor(Collective collective) {
  return collective <= Collective::alltoall || collective == Collective::persistent_allreduce;
}

std::optional<Difference> compare(const Request& left, const Request& right) {
  const auto text = [](const auto& value) { return str(value); };
  if (left.collective != right.collective) {
    return Difference{"operation", text(name_of(left.collective)), text(name_of(right.collective))};
  }
  if (left.dtype != right.dtype) {
    return Difference{"dtype", text(name_of(left.dtype)), text(name_of(right.dtype))};
  }
  if (left.on_gpu != right.on_gpu) {
    return Difference{"device", device_of(left), device_of(right)};
  }
  if (left.wire != right.wire) {
    return Difference{"wire dtype", wire_of(left), wire_of(right)};
  }
  if (left.compression != right.compression) {
    return Difference{"compression", compression_of(left), compression_of(right)};
  }
  if (left.leaf_ranks != right.leaf_ranks) {
    return Difference{"leaves", leaves_of(left), leaves_of(right)};
  }
  if (left.shape.size() != right.shape.size() || shared_extents(left) != shared_extents(right)) {
    return Difference{"shape", to_string(left.shape), to_string(right.shape)};
  }
  if (left.op != right.op) {
    return Difference{"op", text(name_of(left.op)), text(name_of(right.op))};
  }
  if (left.root != right.root) {
    return Difference{"root rank", text(left.root), text(right.root)};
  }
  if (left.priority != right.priority) {
    return Difference{"priority", text(left.priority), text(right.priority)};
  }
  if (factors_differ(left.prescale, right.prescale)) {
    return Difference{"prescale factor", text(left.prescale), text(right.prescale)};
  }
  if (factors_differ(left.postscale, right.postscale)) {
    return Difference{"postscale factor", text(left.postscale), text(right.postscale)};
  }
  if (left.splits != right.splits) {
    return Difference{"splits", to_string(left.splits), to_string(right.splits)};
  }
  if (left.set_ranks != right.set_ranks) {
    return Difference{"ranks", list_of(left.set_ranks), list_of(right.set_ranks)};
  }
  if (left.set_id != right.set_id) {
    return Difference{"process set", text(left.set_id), text(right.set_id)};
  }
  if (left.group != right.group || left.group_size != right.group_size) {
    return Difference{"group", grouping(left), grouping(right)};
  }
  return std::nullopt;
}

Status validate(const Request& request, int set_size) {
  const auto refuse = [&](ErrorCode code, const auto&... parts) {
    return Status(code, str(parts...));
  };
  if (const std::string flaw = flaw_of(request.shape, request.dtype); !flaw.empty()) {
    return refuse(ErrorCode::invalid_argument, flaw);
  }
  if (reduces(request.collective) && !is_supported(request.op, request.dtype)) {
    return refuse(ErrorCode::unsupported, name_of(request.op), " of ", name_of(request.dtype),
                  " is not defined");
  }
  if (Status status = validate_wire(request); !status.ok()) return status;
  if (Status status = validate_compression(request); !status.ok()) return status;
  if (Status status = validate_leaves(request, set_size); !status.ok()) return status;
  if (reduces(request.collective) &&
      !(std::isfinite(request.prescale) && std::isfinite(request.postscale))) {
    return refuse(ErrorCode::invalid_argument, "scale factors must be finite, got ",
                  request.prescale, " and ", request.postscale);
  }
  const bool needs_rows = request.collective == Collective::allgather ||
                          request.collective == Collective::reduce_scatter ||
                          request.collective == Collective::alltoall;
  if (needs_rows && request.shape.empty()) {
    return refuse(ErrorCode::invalid_argument, name_of(request.collective),
                  " needs at least one dimension, got a scalar");
  }
  // Each rank gets the rows of all.
  const bool gets_all =
      request.collective == Collective::allgather || request.collective == Collective::alltoall;
  if (gets_all && request.shape.front() > std::numeric_limits<std::int64_t>::max() / set_size) {
    return refuse(ErrorCode::invalid_argument, "the rows of ", to_string(request.shape), " on ",
                  set_size, " ranks are too many to count");
  }
  if (request.collective == Collective::broadcast &&
      (request.root < 0 || request.root >= set_size)) {
    return refuse(ErrorCode::invalid_argument, "root rank ", request.root,
                  " is not in the process set, whose ranks are 0 to ", set_size - 1);
  }
  return validate_splits(request, set_size);
}

}  // namespace rueda
