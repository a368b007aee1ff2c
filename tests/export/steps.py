"""A step as agents have them, small: a gated layer over rings of 65 rows, an action from noise, a value."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rltransformers.export.step import Tensors

HEADS, WIDTH, ROWS, LAYERS = 4, 64, 65, 1
OBSERVATION, ACTIONS = 6, 4


class Gate(nn.Module):
    """GRU gate between the stream ``x`` and a sublayer's output ``y``, three products of matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.from_y = nn.Linear(WIDTH, 3 * WIDTH)
        self.from_x = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.from_reset = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        reset_y, update_y, candidate = self.from_y(y).chunk(3, -1)
        reset_x, update_x = self.from_x(x).chunk(2, -1)
        reset = torch.sigmoid(reset_y + reset_x)
        update = torch.sigmoid(update_y + update_x - 2.0)
        return torch.lerp(x, torch.tanh(candidate + self.from_reset(reset * x)), update)


class Layer(nn.Module):
    """Attention with Transformer-XL's relative positions over a ring of keys and values, then a feed-forward part."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_forward = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.positions = nn.Linear(WIDTH, WIDTH, bias=False)
        self.content_bias = nn.Parameter(0.1 * torch.randn(HEADS, WIDTH // HEADS))
        self.position_bias = nn.Parameter(0.1 * torch.randn(HEADS, WIDTH // HEADS))
        self.gate_attention, self.gate_forward = Gate(), Gate()
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        angles = torch.arange(ROWS)[:, None] * torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(1e4) / WIDTH))
        self.register_buffer("table", torch.cat([angles.sin(), angles.cos()], -1), persistent=False)

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, slot: Tensor, distance: Tensor, visible: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.qkv(self.norm_attention(x)).chunk(3, -1)
        keys, values = keys.index_copy(1, slot, key[:, None]), values.index_copy(1, slot, value[:, None])
        relative = self.positions(self.table).index_select(0, distance).unflatten(-1, (HEADS, -1))
        heads = query.unflatten(-1, (HEADS, -1))
        scores = torch.einsum("bhd,bshd->bhs", heads + self.content_bias, keys.unflatten(-1, (HEADS, -1)))
        scores = scores + torch.einsum("bhd,shd->bhs", heads + self.position_bias, relative)
        scores = (scores / math.sqrt(WIDTH // HEADS)).masked_fill(~visible[:, None], -torch.inf)
        mixed = torch.einsum("bhs,bshd->bhd", scores.softmax(-1), values.unflatten(-1, (HEADS, -1)))
        x = self.gate_attention(x, torch.relu(self.out(mixed.flatten(1))))
        x = self.gate_forward(x, torch.relu(self.narrow(F.gelu(self.wide(self.norm_forward(x))))))
        return x, keys, values


class ToyStep(nn.Module):
    """Observation, episode start, noise and a shared bias of the actions → action, its log-probability, value."""

    slots: Tensor

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(OBSERVATION, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.actor, self.critic = nn.Linear(WIDTH, ACTIONS), nn.Linear(WIDTH, 1)
        self.log_temperature = nn.Parameter(torch.tensor(0.2))
        self.register_buffer("slots", torch.arange(ROWS), persistent=False)

    def forward(self, inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        clock = state["clock"]
        slot, distance = (clock % ROWS).reshape(1), (clock - self.slots) % ROWS
        position = torch.where(inputs["first"], 0, state["position"])
        visible = distance <= position[:, None]
        x = self.encoder(inputs["observation"])
        new = {"clock": clock + 1, "position": position + 1}
        for number, layer in enumerate(self.layers):
            keys, values = f"keys{number}", f"values{number}"
            x, new[keys], new[values] = layer(x, state[keys], state[values], slot, distance, visible)
        x = self.norm(x)
        temperature = self.log_temperature.exp()  # of one number of the module alone: compilers like to write it down
        logits = self.actor(x) / temperature + inputs["bias"]
        action = (logits + inputs["noise"]).argmax(-1)
        log_probability = logits.log_softmax(-1).gather(1, action[:, None])[:, 0]
        literal = torch.tensor([0.5, -2.0, 3.0]).index_select(0, clock.reshape(1) % 3)  # a constant that is no buffer
        outputs = {"action": action, "log_probability": log_probability, "value": self.critic(x)[:, 0] * literal}
        return outputs | {"position": new["position"]}, new


SHARED = ("bias",)


def toy(layers: int = LAYERS) -> ToyStep:
    """The step with weights none of which is zero or one, so that every weight takes part."""
    step = ToyStep(layers).eval()
    with torch.no_grad():
        for parameter in step.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return step


def toy_inputs(batch: int, generator: torch.Generator) -> Tensors:
    """Random inputs, one episode in twenty starting."""
    return {
        "observation": torch.randn(batch, OBSERVATION, generator=generator),
        "first": torch.rand(batch, generator=generator) < 0.05,
        "noise": -torch.rand(batch, ACTIONS, generator=generator).log().neg().log(),
        "bias": torch.randn(ACTIONS, generator=generator),
    }


def toy_state(batch: int) -> Tensors:
    """The state before the first step."""
    rings = {
        f"{name}{layer}": torch.zeros(batch, ROWS, WIDTH) for layer in range(LAYERS) for name in ("keys", "values")
    }
    return rings | {"clock": torch.tensor(0), "position": torch.zeros(batch, dtype=torch.int64)}
