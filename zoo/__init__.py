"""Suites of results, `rltransformers suite`: tasks x variants x seeds, one CSV row per run, tables and pictures."""

if __name__ != "rltransformers.zoo":
    raise ImportError("import this folder as rltransformers.zoo")
