"""Benchmarks: each prints a table, and with `--json FILE` writes the same figures."""
