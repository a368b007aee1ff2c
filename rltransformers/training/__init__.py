"""What agents share: acting and evaluation here, then ``online``, ``offline``, and the folder of a run in ``runs``.

The algorithm of an agent is its file in ``agents``; its loss is in ``algorithms``.
"""
