"""What a training tells `rueda equiv`, which compares it with the training on one process.

Two or three lines in the script; in a run that `rueda equiv` has not started they do nothing::

    import rueda.torch as rueda

    torch.manual_seed(rueda.equiv.seed())
    optimizer = rueda.wrap(model, optimizer)  # the strategy is that of the command line
    for x, y in batches:
        ...
        optimizer.step()
        rueda.equiv.record(loss=loss)
    optimizer.consolidate()
    rueda.equiv.result(accuracy=accuracy)

``wrap()`` records the model's state after every step by itself; a script with another optimizer calls
:func:`watch` once. docs/equivalence.md tells what is compared, and how.
"""

from rueda.torch.equiv.recorder import is_active, record, result, seed, strategy, watch

__all__ = ["is_active", "record", "result", "seed", "strategy", "watch"]
