"""Seeds of the tests, without the stack trace that PyTorch keeps per seed for a GPU that is not there."""

import torch


def seed(number: int) -> None:
    """Start the default generators of PyTorch at ``number``."""
    if torch.cuda.is_available():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)
