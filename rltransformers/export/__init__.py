"""Acting steps as machine code (``compiled``), CUDA graphs (``graphs``) and files for other programs (``files``)."""
