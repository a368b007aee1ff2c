"""``python -m rltransformers`` is the command ``rltransformers``, which has no current folder on its path."""

import os
import sys

if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
    del sys.path[0]  # ``python -m`` put it there; a module that somebody left in the folder must not run

from rltransformers.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
