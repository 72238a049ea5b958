"""The exception of this package, apart so that raising or catching it imports neither triton nor torch."""


class CompileError(RuntimeError):
    """Triton could not compile a variant for the target, or the driver could not load it."""
