"""`rltransformers collect` from a checkout: `python scripts/collect.py --help`."""

import sys

from rltransformers.cli.main import main

sys.exit(main(["collect", *sys.argv[1:]]))
