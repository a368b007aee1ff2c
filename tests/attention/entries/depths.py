"""Rows and twins of further entries: depths."""

from tests.attention.row import Row

ROWS: dict[tuple[str, str], Row] = {}
VARIANTS: dict[str, Row] = {}
PRESET_ROWS: dict[str, Row] = {}
