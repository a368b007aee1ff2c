"""Mixers other than attention over keys. Each takes tokens, its own state or rows of the past, and the call.

A file here is one mixer; ``MIXERS`` of ``rltransformers.attention.catalogue`` lists it by name.
"""
