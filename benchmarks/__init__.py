"""Speed as ratios against a peer in the same run. ``python -m benchmarks`` runs all and dates the result."""
