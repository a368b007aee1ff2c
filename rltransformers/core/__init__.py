"""What all packages share: errors, ranges of settings, specs of mechanisms, seeds, files.

``checkpoint`` is the file format alone. What an agent puts into a checkpoint is decided in
``training/online/stored_agent.py`` and ``training/offline/stored_agent.py``.
"""
