// How much operations of one kind have moved, counted where the data moves.
#pragma once

#include "core/counter.h"

namespace rueda {

struct TransferCounters {
  Counter ring_steps;  // hops to the neighbour, however finely chunked
  Counter messages_sent;
  Counter payload_bytes_sent;
  Counter payload_bytes_received;
  Counter bytes_reduced;
  Counter bytes_taken;           // copied directly out of other ranks' memory on this host
  Counter bytes_through_kernel;  // those not mapped here, so read or written by the kernel
  Counter bytes_staged;          // copied between a GPU and the host
  // Shared: also counted by application threads that start persistent operations.
  SharedCounter nccl_calls;    // collectives given to NCCL, a group counting as one
  SharedCounter gpu_launches;  // of kernels that pack or unpack a batch
  SharedCounter bytes_packed;  // copied into and out of fusion buffers and staging
};

}  // namespace rueda
