"""How positions enter attention: the axis ``position``."""
