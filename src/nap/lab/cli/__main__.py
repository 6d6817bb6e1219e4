"""`python -m nap.lab.cli`, the same as the command `nap`."""

import sys

from nap.lab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
