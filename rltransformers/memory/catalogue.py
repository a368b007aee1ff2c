"""All memories by name."""

from rltransformers.memory import cache, compressive, memorizing, transformer_xl

MEMORIES = {spec.name: spec for spec in (cache.SPEC, transformer_xl.SPEC, compressive.SPEC, memorizing.SPEC)}
