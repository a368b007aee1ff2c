"""One layer around its mixer: ``layer``, with ``residual`` (norms and gates) and ``feedforward``."""
