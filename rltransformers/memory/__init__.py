"""What a layer keeps of earlier calls: the axis ``memory_kind``."""
