"""Benchmarks of the house, run by `nox -s bench`; compare.py gates a run, plot.py draws the committed ones."""
