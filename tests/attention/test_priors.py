"""Priors beyond the laws: numbers that can be worked out by hand."""

import torch

from rltransformers.attention.priors.gaussian_predicted import PredictedGaussian, gaussian
from rltransformers.functional.windows import Tokens


def places(*p: int) -> Tokens:
    """One stream of one episode."""
    place = torch.tensor([p])
    return Tokens(place, place, place < 0, torch.tensor([-1]))


def test_a_narrow_predicted_gaussian_leaves_the_token_at_its_centre() -> None:
    distance = torch.arange(9)
    scores = gaussian(torch.tensor([[[0.2, 3.4, 7.9]]]), torch.tensor([[[1e-3, 0.0, 1.0]]]), distance)
    assert scores.argmax(-1).tolist() == [[[0, 3, 8]]]
    torch.testing.assert_close(scores[0, 0, 1, 3:5], torch.tensor([-0.5 * 0.8**2, -0.5 * 1.2**2]))


def test_a_query_looks_back_by_its_share_of_the_visible_past() -> None:
    prior = PredictedGaussian(heads=1, head_dim=2, reach=6, window=None)
    assert prior.width is not None
    for value, number in ((prior.centre, 0.0), (prior.width, 0.0)):
        value.data.fill_(number)  # both shares are one half
    found = prior.of_queries(torch.randn(1, 1, 3, 2), torch.arange(8), places(4, 6, 60))
    # past 4: centre 2, window 2, sd 1; past 6, and no more: centre 3, window 3, sd 1.5
    torch.testing.assert_close(found[0, 0, 0, :4], torch.tensor([-2.0, -0.5, 0.0, -0.5]))
    torch.testing.assert_close(found[0, 0, 1, 0], torch.tensor(-2.0))
    assert torch.equal(found[0, 0, 1], found[0, 0, 2])
