"""`rueda bench train`: what a step of training costs, and how much of it is communication.

The driver's side (command, report) starts the ranks under `rueda run` and reads the file that rank 0 leaves. The
ranks' side (worker, measure, contenders, models, gradients) trains the same model in several ways, turn and turn
about.
"""
