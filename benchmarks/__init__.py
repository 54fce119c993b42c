"""Benchmarks: every figure a ratio against a floor or a peer that is measured in the same run.

``python -m benchmarks`` runs them all and prints the table; ``--write`` puts it into docs/performance.md, ``--only`` picks groups,
``--small`` runs every row once with little work, to see that the suite works. Machines are shared and noisy: what is compared
is measured in turn (A B A B A B), the ratio of each round is taken, and the median of the rounds is printed, with what an
fdatasync cost before and after.

Peers (huey, litequeue, procrastinate) come with ``pip install 'interlock[bench]'``, PostgreSQL and GNU parallel with the system's
packages; what is not there is shown as not installed.
"""
