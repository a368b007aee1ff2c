"""A file per command of ``rltransformers``: its options, and a function that runs it."""
