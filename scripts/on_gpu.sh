#!/usr/bin/env bash
# Laws, acting as a CUDA graph and figures on a machine with one CUDA GPU, in nine minutes at most; --dry-run works anywhere.
# The Python is that of PYTHON, else of .venv; else a python3 whose PyTorch sees a GPU, which .venv then builds on;
# else .venv is made as `make` makes it. The nine minutes do not count that installation.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
if ! command -v "$python" >/dev/null; then
  if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    python3 -m venv --system-site-packages .venv
    .venv/bin/python -m pip install --disable-pip-version-check -q -e . pytest pytest-xdist hypothesis
  else
    make .venv/.installed-dev
  fi
fi
OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} exec timeout --signal=INT --kill-after=10 560 "$python" -m benchmarks.gpu "$@"
