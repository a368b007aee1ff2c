"""Random numbers by seed, episode and place, as tensors: the words that ``memory_rules.random_words`` gives in numpy.

They need no generator: an environment that counts its episodes goes on from a checkpoint, and its episodes depend on
neither the device nor the other environments. torch has no arithmetic of unsigned words, so words are int64 here, of
the same bits.
"""

import torch
from torch import Tensor


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word


STEP = _signed(0x9E3779B97F4A7C15)
FACTORS = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def random_words(seed: Tensor, place: Tensor) -> Tensor:
    """64 random bits for every pair of int64 seed and place: the same for the same pair (SplitMix64)."""
    return _mixed(_mixed(seed * STEP) + place * STEP)


def random_shares(words: Tensor) -> Tensor:
    """Random words as uniform numbers in [0, 1), float64."""
    return _shifted(words, 11).to(torch.float64) * 2.0**-53


def random_bits(seed: Tensor, place: Tensor) -> Tensor:
    """A fair coin for every pair of seed and place: the highest bit of its word."""
    return random_words(seed, place) < 0


def random_below(words: Tensor, n: int) -> Tensor:
    """Random words, taken as unsigned, modulo ``n`` < 2**31."""
    high, low = _shifted(words, 32), words & 0xFFFFFFFF
    return (high % n * (2**32 % n) + low % n) % n


def _mixed(words: Tensor) -> Tensor:
    """The finalizer of SplitMix64."""
    words = (words ^ _shifted(words, 30)) * FACTORS[0]
    words = (words ^ _shifted(words, 27)) * FACTORS[1]
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Words shifted right, zeros coming in from the left."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)
