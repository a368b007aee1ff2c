"""Which tokens leave the stack after a layer. Axes: B batch, T tokens, D width, N layers, E numbers of a predictor."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

NEVER = 1.2
"""A threshold above this one keeps every token to the last layer."""


class Leaving(nn.Module):
    """Decides after every layer but the last; the decision about a token reads that token alone."""

    def forward(
        self,
        index: int,
        before: Float[Tensor, "B T D"],
        after: Float[Tensor, "B T D"],
        first: Float[Tensor, "B T D"],
        least: Float[Tensor, "B T"] | None,
    ) -> Bool[Tensor, "B T"]:
        """Tokens that leave after the layer ``index``.

        Args:
            before, after: the stream on both sides of the layer.
            first: the stream after the first layer.
            least: what ``ahead`` returned.
        """
        raise NotImplementedError("what decides defines forward")

    def ahead(self, p: Int[Tensor, "B T"]) -> Float[Tensor, "B T"] | None:
        """Decisions that are the same behind all layers for tokens at positions ``p``."""
        return None

    def predictions(self, streams: list[Float[Tensor, "B T D"]]) -> Float[Tensor, "B T E"]:
        """Losses of leaving, from the streams after all layers: empty where nothing is learned.

        Log-probabilities of leaving after each of the N layers, or N - 1 logits of being right already.
        """
        return streams[0].new_zeros(*streams[0].shape[:2], 0)


def threshold_at(
    threshold: Float[Tensor, ""], p: Int[Tensor, "B T"], decay: float | None, horizon: int
) -> Float[Tensor, "B T"]:
    """clip(0.9 lam + 0.1 exp(-decay p / horizon), 0, 1); the threshold itself without decay, or where it exceeds 1.2.

    Schuster et al. 2022, equation 5: early tokens, which all later ones look at, have to be surer.
    """
    if decay is None:
        return threshold.expand(p.shape)
    least = (0.9 * threshold + 0.1 * torch.exp(-decay * p.to(threshold.dtype) / horizon)).clamp(0, 1)
    return torch.where(threshold > NEVER, threshold, least)


class Confident(Leaving):
    """A token leaves as soon as its confidence reaches the threshold, which is calibrated after training."""

    threshold: Tensor

    def __init__(self, threshold: float, decay: float | None, horizon: int) -> None:
        super().__init__()
        self.decay, self.horizon = decay, horizon
        self.register_buffer("threshold", torch.tensor(threshold))

    def forward(self, index: int, before: Tensor, after: Tensor, first: Tensor, least: Tensor | None) -> Tensor:
        assert least is not None
        return self.confidence(before, after) >= least

    def ahead(self, p: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        return threshold_at(self.threshold, p, self.decay, self.horizon)

    def confidence(self, before: Float[Tensor, "B T D"], after: Float[Tensor, "B T D"]) -> Float[Tensor, "B T"]:
        """Confidence after a layer, for ``forward``."""
        raise NotImplementedError("what is confident defines confidence")


class Saturated(Confident):
    """Confidence is the cosine of the stream on both sides of the layer."""

    def confidence(self, before: Tensor, after: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(before, dim=-1) * torch.linalg.vector_norm(after, dim=-1)
        return (before * after).sum(-1) / size.clamp(min=torch.finfo(size.dtype).tiny)


class Classified(Confident):
    """Confidence is what a classifier, the same after all layers, says: sigmoid(w h + b)."""

    def __init__(self, width: int, threshold: float, decay: float | None, horizon: int) -> None:
        super().__init__(threshold, decay, horizon)
        self.classifier = nn.Linear(width, 1)

    def confidence(self, before: Tensor, after: Tensor) -> Tensor:
        return torch.sigmoid(self.classifier(after))[..., 0]

    def predictions(self, streams: list[Tensor]) -> Tensor:
        """A logit after every layer but the last; the streams do not learn from it."""
        return torch.cat([self.classifier(stream.detach()) for stream in streams[:-1]], -1)


class Multinomial(Leaving):
    """The first layer's stream says after which layer the token leaves: the largest of softmax(W h + b)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.predict = nn.Linear(width, layers)

    def forward(self, index: int, before: Tensor, after: Tensor, first: Tensor, least: Tensor | None) -> Tensor:
        return self.predict(first).argmax(-1) <= index

    def predictions(self, streams: list[Tensor]) -> Tensor:
        return self.predict(streams[0].detach()).log_softmax(-1)


class Geometric(Leaving):
    """A token leaves after the first layer whose own classifier says so: sigmoid(w_n h + b_n) > 1/2."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.predict = nn.Linear(width, layers - 1)

    def forward(self, index: int, before: Tensor, after: Tensor, first: Tensor, least: Tensor | None) -> Tensor:
        return self.predict(after)[..., index] > 0

    def predictions(self, streams: list[Tensor]) -> Tensor:
        """log q(n), q(n) = chi_n prod_(k < n) (1 - chi_k); the last layer takes what is left."""
        logits = [self.predict(stream.detach())[..., n] for n, stream in enumerate(streams[:-1])]
        return geometric(torch.stack(logits, -1))


class Drawn(Leaving):
    """Tokens leave after layers that were drawn for them, counted from 0."""

    def __init__(self, layer: Int[Tensor, "B T"]) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, index: int, before: Tensor, after: Tensor, first: Tensor, least: Tensor | None) -> Tensor:
        return self.layer <= index


def geometric(logits: Float[Tensor, "*n E"]) -> Float[Tensor, "*n N"]:
    """Log-probabilities of leaving at each of N = E + 1 places; sigmoid(logits) are those of what came so far."""
    none = logits.new_zeros(*logits.shape[:-1], 1)
    stays, leaves = F.logsigmoid(-logits).cumsum(-1), F.logsigmoid(logits)
    return torch.cat([none, stays], -1) + torch.cat([leaves, none], -1)
