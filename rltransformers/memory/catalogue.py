"""All memories by name."""

from rltransformers.memory import compressive, memorizing, slots
from rltransformers.memory.interface import CACHE, TRANSFORMER_XL

MEMORIES = {spec.name: spec for spec in (CACHE, TRANSFORMER_XL, compressive.SPEC, memorizing.SPEC, slots.SPEC)}
