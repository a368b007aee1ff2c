"""Attention over keys. ``catalogue`` lists its mechanisms, ``layer`` is the layer, ``engines`` compute it.

A mechanism is a file in the folder of its kind: ``heads``, ``objectives``, ``patterns``, ``priors``, ``scores``,
``selections``, ``slots`` or ``spans``. Mixers that have no keys are in ``rltransformers.mixers``.
"""
