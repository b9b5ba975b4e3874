"""A rank that uses persistent operations (`rueda.torch.PersistentAllreduce`) from Python."""

from __future__ import annotations

import sys

import numpy as np
import rueda
import rueda.torch
import torch

from ..values import OPERATIONS
from .frame import Call, UnsupportedCall, Work, serve
from .rueda_rank import Rueda, new_array


class _RuedaDirect(Rueda):
    def prepare(self, work: Work) -> Call:
        if work.collective != "allreduce":
            raise UnsupportedCall("there are persistent operations for allreduce only")
        array = new_array(work)
        operation = rueda.torch.PersistentAllreduce(
            torch.from_numpy(array), op=rueda.ReduceOp(OPERATIONS.index(work.op))
        )

        def run() -> None:
            operation.start()
            operation.wait()

        return Call(run, array.view(np.uint8), lambda: array.view(np.uint8))


if __name__ == "__main__":
    serve(_RuedaDirect(), sys.argv[1], sys.argv[2])
