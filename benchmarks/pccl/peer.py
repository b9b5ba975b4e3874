"""What PCCL's documentation has a peer do: join, and reduce with several operations in flight, which it repeats.

It also advises to have the ring optimized, which is left out: on a link of 1 Gbit/s the measurement of bandwidth aborts
all peers (std::terminate once one of its 16 connections is reset); with PCCL_NUM_BENCHMARK_CONNECTIONS=1 it takes half
a minute for 4 peers. Where each host has one rank and all links are alike, no ring is better than another.
"""

from __future__ import annotations

import time

import numpy as np
import pccl

# How many operations may be in flight. PCCL 1.0.0 goes on counting those that have failed, and once they are as many as
# it may have, it returns success without having repeated any.
UNLIMITED = 1 << 20
SMALLEST = 1 << 20  # bytes that make an operation worth the master's round trips
NEVER = pccl.QuantizationOptions(pccl.DataType.FLOAT, pccl.QuantizationAlgorithm.NONE)


def to_uint8(algorithm: str) -> pccl.QuantizationOptions:
    """`algorithm`: MIN_MAX or ZERO_POINT_SCALE."""
    return pccl.QuantizationOptions(pccl.DataType.UINT8, pccl.QuantizationAlgorithm[algorithm])


def join(master: str, ranks: int, connections: int = 1) -> pccl.Communicator:
    """A communicator of that many peers, each with `connections` to the next one. `master`: its ADDRESS:PORT."""
    world = pccl.Communicator(master, 0, connections)
    world.connect(n_attempts=1)
    while world.get_attribute(pccl.Attribute.GLOBAL_WORLD_SIZE) < ranks:
        if world.are_peers_pending():
            world.update_topology()
        else:
            time.sleep(0.01)
    return world


def operations(
    tensor: np.ndarray, count: int, quantization: pccl.QuantizationOptions = NEVER
) -> list[pccl.ReduceOpDescriptor]:
    """Those that together sum up a tensor in place: `count`, fewer if they would be small."""
    operand = pccl.ReduceOperandDescriptor(pccl.DataType.FLOAT, pccl.DistributionHint.NONE)
    parts = np.array_split(tensor, max(1, min(count, tensor.nbytes // SMALLEST)))
    return [
        pccl.ReduceOpDescriptor.from_numpy(
            part,
            part,
            pccl.ReduceDescriptor(part.size, pccl.ReduceOp.SUM, tag, operand, quantization),
        )
        for tag, part in enumerate(parts)
    ]


def reduce(world: pccl.Communicator, parts: list[pccl.ReduceOpDescriptor]) -> int:
    """Runs all operations at once and repeats those that fail; returns how many peers are left."""
    info = world.all_reduce_multiple_with_retry(parts, max_in_flight=UNLIMITED)
    return int(info.local_world_size)
