"""`rltransformers evaluate` from a checkout: `python scripts/evaluate.py --help`."""

import sys

from rltransformers.cli.main import main

sys.exit(main(["evaluate", *sys.argv[1:]]))
