"""Finds steps and input of a training with torch, where a recording is asked for."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from rueda.report.recorder import Recorder, now, recorder
from rueda.report.recording_format import EVAL, Kind

__all__ = ["begin_if_asked", "install", "note_input"]


def note_input(recorder: Recorder, began: int) -> None:
    """The training thread has waited for a batch since then."""
    recorder.add(Kind.INPUT, began, now(), flags=0 if torch.is_grad_enabled() else EVAL)


def install(recorder: Recorder) -> None:
    """Once in a process. A loader that is used by another thread than the one that trains is left alone."""

    def timed(kind: Any, name: str) -> None:
        original = getattr(kind, name)

        @wraps(original)
        def call(loader: Any) -> Any:
            if not recorder.is_training_thread():
                return original(loader)
            began = now()
            try:
                return original(loader)
            finally:
                note_input(recorder, began)

        setattr(kind, name, call)

    timed(DataLoader, "__iter__")
    timed(_BaseDataLoaderIter, "__next__")
    register_optimizer_step_pre_hook(lambda *_: recorder.begin_step())
    register_optimizer_step_post_hook(lambda *_: recorder.end_step())


def begin_if_asked() -> None:
    """At the import of rueda.torch."""
    recording = recorder()
    if recording is not None:
        install(recording)
