"""The judge behind `rueda equiv`: records of trainings in, verdicts with a stated confidence out. Pure; needs SciPy.

`record_files.py` reads records, `distances.py` lays two side by side, `rounding.py` tells whether rounding explains
how far they are apart, `quality.py` whether the seeds' own spread covers a gap in loss or metric, `measures.py` of
which numbers more is better, `looks.py` what looking again costs, `targets.py` when a loss was reached, and `judge.py`
makes one verdict of these. docs/equivalence.md has the reasoning.
"""
