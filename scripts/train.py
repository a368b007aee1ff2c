"""`rltransformers train` from a checkout: `python scripts/train.py --help`."""

import sys

from rltransformers.cli.main import main

sys.exit(main(["train", *sys.argv[1:]]))
