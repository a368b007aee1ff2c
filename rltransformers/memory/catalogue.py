"""All memories by name."""

from rltransformers.core.spec import by_name
from rltransformers.memory import compressive, memorizing, slots
from rltransformers.memory.interface import CACHE, TRANSFORMER_XL

MEMORIES = by_name(CACHE, TRANSFORMER_XL, compressive, memorizing, slots)
