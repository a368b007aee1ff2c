"""Whether tests that take a choice of their cases take them all: ``RLTRANSFORMERS_ALL_CASES=1``."""

import os

ALL_CASES = os.environ.get("RLTRANSFORMERS_ALL_CASES") == "1"
