"""Decision Transformers besides their algorithm: data, loss, playing episodes, checkpoints (``stored_agent``)."""
