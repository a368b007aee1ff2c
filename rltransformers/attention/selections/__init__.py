"""Which of the visible keys are used: the axis ``selection``."""
