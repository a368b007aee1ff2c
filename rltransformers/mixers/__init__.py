"""Mixers other than attention over keys. Each takes tokens, its own state or rows of the past, and the call.

A file here is one mixer, or what several have in common; ``MIXERS`` of ``rltransformers.attention.catalogue`` lists
them by name.
"""
