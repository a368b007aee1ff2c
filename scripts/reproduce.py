"""`rltransformers suite` from a checkout: `python scripts/reproduce.py --help`."""

import sys

from rltransformers.cli.main import main

sys.exit(main(["suite", *sys.argv[1:]]))
