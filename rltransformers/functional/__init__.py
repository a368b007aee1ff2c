"""Mathematics of the mechanisms: functions of tensors without parameters."""
