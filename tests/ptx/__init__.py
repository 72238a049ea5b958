"""A PTX interpreter for tests: runs the emitted kernels on the CPU, thread by thread, and checks every memory access.

Not part of any wheel. `backends.py` compiles and launches, `machine.py` executes, `docs/ptx-on-cpu.md` explains.
"""
