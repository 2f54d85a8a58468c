"""`python -m embed` is `embed`."""

import sys

from embed.cli import main

if __name__ == "__main__":
    sys.exit(main())
