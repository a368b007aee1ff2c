"""A run: its config (``experiment``), its folder, its pictures, its callback."""
