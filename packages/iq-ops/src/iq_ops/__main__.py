"""`python -m iq_ops` is the command line `iq-ops`."""

from .cli import main

if __name__ == "__main__":
    main()
