"""``python -m rltransformers`` is the command ``rltransformers``, which has no current folder on its path."""

import sys

from rltransformers.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
