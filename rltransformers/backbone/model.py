"""The attention backbone, for training on segments and for acting. Axes: B batch, T tokens, D model width."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rltransformers.attention.softmax import Memorizing
from rltransformers.backbone.build import build_layers, build_positions, shares_layers
from rltransformers.backbone.config import BackboneConfig
from rltransformers.backbone.depth import Depth
from rltransformers.backbone.inputs import check_inputs, checked_context
from rltransformers.backbone.losses import ExitOptions
from rltransformers.backbone.state import State, part_of, prefixed
from rltransformers.blocks.layer import Layer
from rltransformers.blocks.residual import normalized
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.ranges import suggesting
from rltransformers.core.record import Probe, Record
from rltransformers.core.spec import Feature
from rltransformers.functional.call import EVERY, Call, Context, Tokens, chosen, episode_positions
from rltransformers.functional.modules import NORMS, dropout
from rltransformers.functional.online_means import OnlineMeans
from rltransformers.functional.windows import descending, match_axes, padded_behind
from rltransformers.memory.interface import RINGS, Cached, Form, RowMemory
from rltransformers.mixers.interface import LayerState, Mixer, RowMixer
from rltransformers.positions.interface import Position
from rltransformers.stacks.exits import Exits
from rltransformers.stacks.plain import Plain
from rltransformers.stacks.reversible import Reversible


class Backbone(nn.Module):
    """Layers over a stream of tokens, with a state of fixed size.

    ``backbone(x, state, reset)`` gives the same outputs for a stream however it is split into calls, down to one token
    at a time, and an episode inside a stream equals the same episode alone. The gradient flows through all tokens of a
    call and stops at ``state`` (and at what a memory has compressed or stored inside the call).

    Args:
        config: a ``BackboneConfig`` or what ``BackboneConfig.from_dict`` reads.
    """

    @suggesting
    def __init__(self, config: BackboneConfig | Mapping[str, Any] | str) -> None:
        super().__init__()
        self.config = BackboneConfig.from_dict(config)
        self.width, self.aux_weights = self.config.width, self.config.loss_weights()
        depth: Depth = self.config.choices.depth.build()
        self.universal = shares_layers(self.config)
        self.input_positions, at_score = build_positions(self.config, self.config.layers)
        every = [each for each in (*self.input_positions, at_score[0]) if isinstance(each, Position)]
        self.finite_positions = [each for each in every if (each.places, each.timesteps) != (None, None)]
        count = 1 if self.universal else self.config.layers
        self.layers = nn.ModuleList(build_layers(self.config, range(count), at_score[:count]))
        layers = [self.layer(index) for index in range(self.config.layers)]
        norm = NORMS[self.config.norm]
        self.input_norm = norm(self.width) if self.config.input_norm else None
        self.final_norm = norm(self.width) if self.config.final_norm else None
        self.state_forms = {form.value: self.state_shapes(form) for form in Form}
        self.training_shapes = [layer.shapes(Form.TRAINING) for layer in layers]
        self.tasks, self.reads_context = self.config.tasks, self.config.reads_context
        self.hands_out = any(Feature.STREAMS in each.spec.offers for each in self.config.choices.losses)
        self.halt = None if depth.halt is None else depth.halt(self.width, self.config.layers)
        if Feature.INVERSE in self.config.choices.residual.spec.offers:
            self.stack: Plain | Reversible = Reversible(layers)
        else:
            stack = depth.stack(layers, self.embed, self.halt)
            if isinstance(stack, Exits):
                options = [each.options for each in self.config.choices.losses]
                mixes = any(isinstance(each, ExitOptions) and each.training == "mixed" for each in options)
                stack = replace(stack, mixes=mixes)
            self.stack = replace(stack, recomputes=self.config.checkpoint)

    def layer(self, index: int) -> Layer:
        """The layer applied at ``index``; a universal backbone has only one."""
        layer = self.layers[0 if self.universal else index]
        assert isinstance(layer, Layer)
        return layer

    def initial_state(
        self,
        batch_size: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        cached: Cached = False,
    ) -> State:
        """State of streams that begin, in the training form, or with ``cached`` in an acting form.

        True keeps rings of keys and values beside those of layer inputs; "only" keeps them alone, for acting that no
        training segment will start from.
        """
        parameter = next(self.parameters())
        device, dtype = device or parameter.device, dtype or parameter.dtype
        if cached not in self.state_forms:
            raise ConfigError(f"cached must be False, True or 'only', got {cached!r}")
        counts = {"position": (-1, torch.long), "clock": (0, torch.long)}
        tensors = {}
        for name, shape in self.state_forms[cached].items():
            value, kind = counts.get(name, (0, dtype))
            tensors[name] = torch.full((batch_size, *shape), value, dtype=kind, device=device)
        return State(tensors)

    def state_shapes(self, form: Form) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors of a state without the batch axis."""
        shapes: dict[str, tuple[int, ...]] = {"position": ()}
        if form is not Form.TRAINING:
            shapes["clock"] = ()
        for index in range(self.config.layers):
            shapes |= {f"layer{index}.{name}": shape for name, shape in self.layer(index).shapes(form).items()}
        return shapes

    @property
    def receptive_field(self) -> int | None:
        """Tokens before a token that its output may depend on; None where that can be all of its episode.

        Every layer keeps the rows that it looks back at, so their numbers add up; sums and sinks know no bound.
        """
        total, rows = 0, {*RINGS, "taps", "second_taps"}
        for shapes in self.training_shapes:
            if not {name.rpartition(".")[2] for name in shapes} <= rows:
                return None
            counts = {name: shape[0] for name, shape in shapes.items()}
            total += max(counts.pop("hidden", 0), counts.pop("keys", 0)) + sum(counts.values())
        return total

    def tables(self) -> dict[str, Tensor]:
        """Tables of every layer over distances under today's weights, for the argument ``tables`` of many calls."""
        tables: dict[str, Tensor] = {}
        with torch.no_grad():
            for index, layer in enumerate(self.stack.layers):
                tables |= prefixed(f"layer{index}", layer.mixing.tables())
        return tables

    def table_sources(self) -> list[nn.Module]:
        """The modules whose weights ``tables`` depends on."""
        return [source for mixer in self.mixers() if isinstance(mixer, RowMixer) for source in mixer.table_sources()]

    def mixers(self) -> list[Mixer]:
        """The mixer of every layer with weights of its own."""
        return [layer.mixing.mixer for layer in self.stack.layers[: len(self.layers)]]

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        state: State | None = None,
        reset: Bool[Tensor, "B T"] | None = None,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
        timestep: Int[Tensor, "B T"] | None = None,
        task: Int[Tensor, "B T"] | None = None,
        context: Context | None = None,
        wanted: slice = EVERY,
        record: Record | None = None,
    ) -> tuple[Float[Tensor, "B t D"], State]:
        """Outputs of the ``wanted`` tokens and the state after the last token.

        Args:
            state: what a previous call returned, or None for a stream that starts here.
            reset: True where a token is the first of an episode (counts for valid tokens only).
            valid: False for padding, anywhere; padding changes nothing and its outputs are zero.
            timestep: environment step of every token, read by the position "timestep"; default: its position inside the
                episode divided by ``tokens_per_step``.
            task: task of every token, from 0 to ``config.tasks`` - 1, the same in all of an episode.
            context: the encoded elements that tokens look at; needed where ``config.reads_context``.
            wanted: tokens whose outputs are returned; what the last layer would do for the others alone is left out.
            record: collects auxiliary losses and metrics.

        Raises:
            ConfigError: an argument is missing, of another shape or type, or of another backbone.
            DataError: an episode is longer than a position table, or a task is none of those there are.
        """
        weights = next(self.parameters(), x).dtype
        check_inputs(x, state, self.width, weights, reset=reset, valid=valid, timestep=timestep, task=task)
        if state is not None:
            self.check_state(state)
        if self.reads_context or context is not None:
            context = checked_context(x, context, self.reads_context).without_padding(valid)
        if task is None and self.tasks is not None:
            raise ConfigError(
                f"the backbone reads which of {self.tasks} tasks an episode is: pass task=... [batch, time], or "
                "give the prior a fixed task"
            )
        if state is not None and state.acts:
            if x.shape[1] <= self.config.tokens_per_step and valid is None and record is None:
                if self.finite_positions:
                    tokens = self.locate(x, state, reset, timestep)
                    self.check_places(tokens.p, tokens.timestep)
                if self.tasks is not None:
                    self.check_tasks(task)
                return self.step(x, state, reset, timestep=timestep, task=task, context=context, wanted=wanted)
            y, after = self.segment(x, self.in_order(state), reset, valid, timestep, task, context, wanted, record)
            return y, self.in_rings(after)
        return self.segment(x, state, reset, valid, timestep, task, context, wanted, record)

    def step(
        self,
        x: Float[Tensor, "B T D"],
        state: State,
        reset: Bool[Tensor, "B T"] | None = None,
        *,
        timestep: Int[Tensor, "B T"] | None = None,
        task: Int[Tensor, "B T"] | None = None,
        context: Context | None = None,
        wanted: slice = EVERY,
        tables: dict[str, Tensor] | None = None,
        overwrites: bool = False,
        record: Record | None = None,
    ) -> tuple[Float[Tensor, "B t D"], State]:
        """The tokens of at most one environment step, in fixed shapes and without a look at data.

        Before it, ``check_places`` says whether position tables reach to these tokens, ``check_tasks`` whether there
        are such tasks. Other arguments are those of ``forward``.

        Args:
            tables: ``tables()``, computed anew whenever weights change; None computes what is needed of them here.
            overwrites: whether the rings of ``state`` may be written in place; the returned state holds the same rings.

        Raises:
            ConfigError: more tokens than one environment step has, or a state in the form for training.
        """
        if x.shape[1] > self.config.tokens_per_step:
            raise ConfigError(
                f"a step has at most {self.config.tokens_per_step} tokens (tokens_per_step), got {x.shape[1]}; "
                "call the backbone itself, which takes any number"
            )
        if not state.acts:
            raise ConfigError(
                "a step needs a state for acting; pass initial_state(..., cached=True) or with_cache(state)"
            )
        tokens = self.locate(x, state, reset, timestep, task=task)
        clock = state.tensors["clock"]
        call = Call(tokens, Probe(record), wanted, clock[0], overwrites, tables or {}, context=context)
        y, after = self.run(x, self.layer_states(state, x), call)
        return y, state_of({"position": tokens.p[:, -1], "clock": clock + x.shape[1]}, after)

    def segment(
        self,
        x: Tensor,
        state: State | None,
        reset: Tensor | None,
        valid: Tensor | None,
        timestep: Tensor | None,
        task: Tensor | None,
        context: Context | None,
        wanted: slice,
        record: Record | None,
    ) -> tuple[Tensor, State]:
        """Any number of tokens, from a state whose rows lie in order."""
        order, asked = None, wanted
        if valid is not None:
            x = x.masked_fill(~valid[..., None], 0.0)  # padding may hold NaN, which no weight of 0 takes away
        if valid is not None and not padded_behind(valid):
            order = torch.argsort((~valid).to(torch.uint8), dim=1, stable=True)
            x = _take(x, order)
            reset = None if reset is None else _take(reset, order)
            timestep, task = (None if each is None else _take(each, order) for each in (timestep, task))
            context = None if context is None else context.sorted(order)
            wanted = EVERY  # sorted tokens go back to their places before any is left out
        tokens = self.locate(x, state, reset, timestep, None if valid is None else valid.sum(1), task)
        looks_at_data = not torch.compiler.is_compiling()  # else acting did, at the same tokens
        if self.finite_positions and looks_at_data:
            self.check_places(tokens.p, tokens.timestep)
        if self.tasks is not None and looks_at_data:
            self.check_tasks(tokens.task)
        if record is not None:
            record.streams, record.exits, record.random_exits = [] if self.hands_out else None, None, None
        call = Call(tokens, Probe(record), wanted, context=context)
        x, after = self.run(x, self.layer_states(state, x), call)

        def placed(x: Tensor) -> Tensor:
            if order is not None:
                x = chosen(torch.zeros_like(x).scatter(1, order[..., None].expand_as(x), x), asked)
            return x if valid is None else x * valid[:, asked, None]

        if record is not None and record.streams is not None:
            record.streams = [placed(normalized(self.final_norm, like(each, x))) for each in record.streams]
            record.exits = None if record.exits is None else placed(like(record.exits, x))
            mixed = record.random_exits
            record.random_exits = None if mixed is None else placed(normalized(self.final_norm, like(mixed, x)))
        return placed(x), state_of({"position": tokens.last_position()}, after)

    def run(self, x: Tensor, states: list[LayerState], call: Call) -> tuple[Tensor, list[LayerState]]:
        """Embedding, layers, norms: the wanted tokens, and the states of the layers."""
        if self.input_positions and not self.universal:
            x = self.embed(x, call)
        x = normalized(self.input_norm, x)
        if self.training and self.config.dropout:
            x = dropout(x, self.config.dropout)
        if call.clock is not None or self.config.compute_dtype == "float32" or x.dtype != torch.float32:
            x, after = self.stack.run(x, states, call)
            return normalized(self.final_norm, x), after
        with torch.autocast(x.device.type, torch.bfloat16):
            y, after = self.stack.run(x, states, call)
        after = [{name: like(value, x) for name, value in state.items()} for state in after]
        return normalized(self.final_norm, y.to(x.dtype)), after

    def locate(
        self,
        x: Tensor,
        state: State | None = None,
        reset: Tensor | None = None,
        timestep: Tensor | None = None,
        length: Tensor | None = None,
        task: Tensor | None = None,
    ) -> Tokens:
        """Where every token stands; ``length`` of them are valid."""
        index, group = torch.arange(x.shape[1], device=x.device), self.config.tokens_per_step
        before = torch.full((len(x),), -1, device=x.device) if state is None else state.tensors["position"]
        p = before[:, None] + 1 + index if reset is None else episode_positions(before, reset)
        step = timestep if timestep is not None else (p if group == 1 else p // group)
        if length is not None:
            inside = index < length[:, None]
            p, step = torch.where(inside, p, 0), torch.where(inside, step, 0)
            task = None if task is None else torch.where(inside, task, 0)
        return Tokens(p, step, p > index, before, length, task)

    def check_state(self, state: State) -> None:
        """Raise ConfigError unless the tensors of a state have the names and shapes that this backbone gives them."""
        shapes = {name: value.shape[1:] for name, value in state.tensors.items()}
        forms = [self.state_forms[True], self.state_forms["only"]] if state.acts else [self.state_forms[False]]
        if shapes not in forms:
            expected = min(forms, key=lambda each: len(each.keys() ^ shapes.keys()))
            raise ConfigError(
                f"state is of another backbone: {state.difference(expected)}; pass what this one returned, or "
                f"initial_state({state.batch_size})"
            )

    def check_places(self, p: Int[Tensor, "*n"], timestep: Int[Tensor, "*n"] | None = None) -> None:
        """Raise DataError unless the encodings have these episode positions and steps; looks at data.

        Call it before ``step``, which does not; of the tokens of a step the last one is enough. ``timestep`` defaults
        to p divided by ``tokens_per_step``.
        """
        for position in self.finite_positions:
            position.check_places(p, p // self.config.tokens_per_step if timestep is None else timestep)

    def check_tasks(self, task: Int[Tensor, "B T"] | None) -> None:
        """Raise DataError unless every token has one of the ``tasks``; looks at data, so ``step`` does not call it."""
        if task is None or self.tasks is None:
            return
        for each in (int(end) for end in task.aminmax()):
            if not 0 <= each < self.tasks:
                raise DataError(f"task {each} is none of the {self.tasks} tasks, which are counted from 0")

    def embed(self, x: Tensor, call: Call) -> Tensor:
        for position in self.input_positions:
            assert isinstance(position, Position)
            x = position.embed(x, call.tokens.p, call.tokens.timestep)
        return x

    def layer_states(self, state: State | None, x: Tensor) -> list[LayerState]:
        """States of all layers, detached; a stream that starts here has no memory rows at all.

        With a gradient, tensors of inference mode are cloned, so that autograd accepts them.
        """
        if state is None:
            return [
                {
                    name: x.new_zeros(x.shape[0], *((0, *shape[1:]) if name in RINGS else shape))
                    for name, shape in shapes.items()
                }
                for shapes in self.training_shapes
            ]
        tensors = state.tensors
        if torch.is_grad_enabled():
            tensors = {name: value.clone() if value.is_inference() else value for name, value in tensors.items()}
        tensors = {name: value.detach() if value.requires_grad else value for name, value in tensors.items()}
        return [part_of(f"layer{index}", tensors) for index in range(self.config.layers)]

    def with_cache(self, state: State) -> State:
        """Acting form of ``state``: keys and values of what is remembered, with today's weights."""
        with torch.no_grad():
            state = self.without_cache(state)
            before = state.tensors["position"]
            rows = self.map_memories(state, lambda layer, memory, part: memory.with_keys(part, layer.keys_of, before))
            rings, low = self.in_rings(rows), torch.is_autocast_enabled(before.device.type)
            # Acting goes on where autocast may have ended.
            return rings.map(lambda value: like(value, next(self.parameters()))) if low else rings

    def without_cache(self, state: State) -> State:
        """Training form of ``state``: layer inputs only."""
        state = self.in_order(state) if state.acts else state
        return self.map_memories(state, lambda layer, memory, part: memory.without_keys(part))

    def in_order(self, state: State) -> State:
        """An acting state with its rows and keys in order, from which a segment continues."""
        clock = state.tensors["clock"][0]
        return self.map_memories(state, lambda layer, memory, part: memory.in_order(part, clock))

    def in_rings(self, state: State) -> State:
        """The inverse of ``in_order``, with a clock that stands at 0; contiguous as machine code writes it."""
        state = self.map_memories(state, lambda layer, memory, part: memory.in_rings(part))
        tensors = {name: value.contiguous() for name, value in state.tensors.items()}
        position = tensors["position"].clone()
        return State({**tensors, "position": position, "clock": torch.zeros_like(position)})

    def map_memories(self, state: State, change: Callable[[Layer, RowMemory, LayerState], LayerState]) -> State:
        """The state with those of layers with a memory changed, without a clock."""
        parts = []
        for index, layer in enumerate(self.stack.layers):
            part, memory = part_of(f"layer{index}", state.tensors), layer.mixing.memory
            parts.append(part if memory is None else change(layer, memory, part))
        return state_of({"position": state.tensors["position"]}, parts)

    def stored_keys(self, state: State) -> tuple[Float[Tensor, "M G K"], Float[Tensor, "M G V"]]:
        """Keys and values that the layer with a store holds of the running episodes, for a bank (``save_bank``)."""
        for index, mixer in enumerate(self.mixers()):
            if isinstance(mixer, Memorizing):
                rows = self.without_cache(state).tensors[f"layer{index}.keys"].detach()
                exists = descending(rows.shape[1], rows.device) <= state.tensors["position"][:, None]
                return mixer.score.keys_of(rows[exists])
        raise ConfigError("no layer has a store; set memory_kind to 'memorizing'")

    def constrain_(self) -> None:
        """Bring bounded parameters (adaptive spans) back into range; call after every optimizer step."""
        for mixer in self.mixers():
            mixer.constrain_()

    def maintain(self) -> None:
        """Let mixers learn what they learn without gradients; call between two rounds of collecting and learning."""
        for mixer in self.mixers():
            mixer.maintain()

    def statistics(self) -> list[Tensor]:
        """Statistics for ``maintain``: sums over the tokens since its last call, which several processes add up."""
        return [value for module in self.modules() if isinstance(module, OnlineMeans) for value in module.statistics()]


def state_of(tensors: dict[str, Tensor], layers: list[LayerState]) -> State:
    """The state of these layers, with further tensors."""
    for index, part in enumerate(layers):
        tensors |= {f"layer{index}.{name}": value for name, value in part.items()}
    return State(tensors)


def like(value: Tensor, x: Tensor) -> Tensor:
    """Cast floating-point values to ``x.dtype``; leave integers and booleans alone."""
    return value.to(x.dtype) if value.is_floating_point() else value


def _take(tokens: Tensor, order: Tensor) -> Tensor:
    index = match_axes(order, tokens).expand(*order.shape, *tokens.shape[2:])
    return tokens.gather(1, index)
