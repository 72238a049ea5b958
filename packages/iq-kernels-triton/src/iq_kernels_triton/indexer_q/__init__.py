"""The indexer-Q operation: `launch.py` is called, `config.py` chooses, `compiling.py` compiles, `kernel.py` computes."""
