"""Steps and evaluations as machine code (``compiled``, ``evaluation``), CUDA graphs (``graphs``) and files for other
programs (``files``), which are read back by ``reading``.
"""
