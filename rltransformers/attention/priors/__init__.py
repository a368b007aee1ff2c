"""Terms added to the logits besides content and position: the axis ``prior``."""
