"""Records a training for `rueda equiv`, which compares it with the same training on one process.

It takes two or three lines in the script, which do nothing in a run that `rueda equiv` has not started::

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
:func:`watch` once. docs/equivalence.md explains what is compared, and how.
"""

from rueda.torch.equiv.recorder import is_active, record, result, seed, strategy, watch

__all__ = ["is_active", "record", "result", "seed", "strategy", "watch"]
