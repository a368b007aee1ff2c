"""``python -m rltransformers`` is the command ``rltransformers``."""

import sys

from rltransformers.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
