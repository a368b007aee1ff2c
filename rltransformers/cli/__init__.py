"""The command line. ``main`` dispatches to a file per command in ``commands``; the other files are shared."""
