// What is simulated: the world, its links, the model that is trained, and the engine's options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/options.h"
#include "core/status.h"
#include "plan/link_costs.h"

namespace rueda::simulate {

// What things take; all of it can be measured. Times in nanoseconds, and per byte.
struct Costs {
  // From one host to another. A message leaves its host after those before it, at per_byte, and
  // arrives a latency later. `chunk` is what the engine sends at a time.
  LinkCosts link;
  double reduce = 0.1;             // to add what has arrived
  double copy = 0.1;               // into a fusion buffer, or out of it
  double memory = 0.2;             // a stage of a collective within a host, of the whole tensor
  double memory_latency = 5'000;   // the same of nothing; and a word between ranks of a host
  double control_message = 3'000;  // processor time of sending or receiving one
};

struct Tensor {
  std::string name;
  std::int64_t elements = 0;  // float32
};

struct Settings {
  int hosts = 4;
  int ranks_per_host = 1;
  Costs costs;
  std::vector<Tensor> tensors;  // in the order in which the backward pass finishes them
  double forward = 0;           // seconds of a step before the backward pass
  double backward = 0;     // seconds, in which tensors become ready in proportion to their bytes
  double jitter = 0;       // each rank is late by up to so many seconds, evenly distributed
  std::uint64_t seed = 1;  // of that
  int steps = 2;           // the first one is negotiated in full
  bool replay = true;      // later ones without negotiation
  int fanout = 4;          // of the trees
  Options engine;          // fusion threshold, chunk, cache, algorithm, batches in flight
  bool json = false;

  [[nodiscard]] int ranks() const { return hosts * ranks_per_host; }
};

// The text of --help.
[[nodiscard]] std::string usage();

// The arguments of the command without its name. Fails with a sentence that says which of them is
// wrong and what is accepted.
[[nodiscard]] Expected<Settings> parse(const std::vector<std::string>& arguments);

}  // namespace rueda::simulate
