"""How queries meet keys, other than by scaled dot products; each of these is a value of the axis ``mixer``."""
