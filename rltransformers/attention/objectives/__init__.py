"""Auxiliary losses that read what attention computed: how heads differ, and where they look."""
