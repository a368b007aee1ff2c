"""Mixers other than attention over keys. Each takes tokens, its own state or rows of the past, and the call."""
