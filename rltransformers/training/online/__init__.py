"""Online agents besides their algorithm: rollouts (``on_policy_agent``), checkpoints (``stored_agent``)."""
