"""How heads share keys and are joined: the axis ``head_mixing``."""
