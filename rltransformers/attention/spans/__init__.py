"""How far back each head looks: the axis ``span``."""
