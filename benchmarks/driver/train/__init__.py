"""`rueda bench train`: the time of a training step, and how much of it is communication.

The driver's side (command, report) starts the ranks under `rueda run` and reads the file that rank 0 writes. The
ranks' side (worker, measure, contenders, models, gradients) trains the same model in several ways, in turn.
"""
