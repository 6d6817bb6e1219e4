"""`python -m nap`, the same as the command `nap`."""

import sys

from nap.lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
