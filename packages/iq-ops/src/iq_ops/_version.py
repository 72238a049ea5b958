"""The one place that states this package's version."""

__version__ = "0.1.0"
