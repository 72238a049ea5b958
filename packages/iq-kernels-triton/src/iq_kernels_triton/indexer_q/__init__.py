"""The indexer-Q operation: `launch.py` runs, `config.py` chooses, `compiling.py` compiles, `kernel.py` computes."""
