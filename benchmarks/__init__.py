"""Speed as ratios against peers in the same run.

``make bench`` runs all and writes a dated result; ``make bench NAMES="training decoding"`` only prints.

Apart from them, ``python -m benchmarks.mutation ROOM`` scores the tests of a room by mutants.
"""
