"""Which earlier tokens a token may attend to: the axis ``pattern``."""
