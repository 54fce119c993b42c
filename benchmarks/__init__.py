"""Benchmarks: every figure a ratio against a floor or a peer that is measured in the same run.

``python -m benchmarks`` runs them all and prints the table; ``--write`` puts it into docs/performance.md. Machines are shared and
noisy: only ratios within one run mean anything, and a fsync probe is printed beside them.
"""
