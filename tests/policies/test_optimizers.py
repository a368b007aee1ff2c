"""Optimizers by name: which class, which parameters Muon gets, and one state, one list of groups for its two parts."""

import copy
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import nn

from rltransformers.agents import DecisionTransformer, GTrXLPPO, GTrXLSAC
from rltransformers.core.checkpoint import check_optimizer, restore_optimizer
from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.optimizers import MUON_EPS, Muon, decay_groups, make_optimizer, over
from rltransformers.policies.q_network import GTrXLQPolicy
from rltransformers.policies.sac_policy import GTrXLSACPolicy
from tests.data.coded import coded_episodes

BOX, CHOICE = spaces.Box(-1, 1, (5,)), spaces.Discrete(3)
BACKBONE = {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}
SMALL = {"width": 8, "layers": 1, "heads": 2}
LAYER = "backbone.layers.0."
MATRICES = {
    LAYER + name
    for name in (
        "mixing.mixer.position.project.weight",
        "mixing.mixer.project.weight",
        "mixing.mixer.output.weight",
        "ff.into.weight",
        "ff.out.weight",
        *(f"{join}.gate.{name}.weight" for join in ("join_mixing", "join_ff") for name in ("from_y", "from_x")),
        *(f"{join}.gate.candidate.weight" for join in ("join_mixing", "join_ff")),
    )
}


def policy(kind: type[Any] = GTrXLPolicy, action: Any = CHOICE, **settings: Any) -> Any:
    return kind(BOX, action, lambda _: 0.01, backbone=BACKBONE, head_width=6, previous_action=True, **settings)


def offline(**kwargs: Any) -> Any:
    settings: dict[str, Any] = {"context_length": 4, "weight_decay": 0.5, "seed": 0, "device": "cpu"}
    return DecisionTransformer("DTPolicy", coded_episodes(), policy_kwargs=kwargs, **settings)


def names_of_matrices(module: nn.Module, optimizer: torch.optim.Optimizer) -> set[str]:
    names = {id(each): name for name, each in module.named_parameters()}
    return {names[id(each)] for group in optimizer.param_groups if group["muon"] for each in group["params"]}


def test_the_matrices_of_hidden_layers_are_muons() -> None:
    """No encoder, embedding, head, bias or gain is."""
    of_actor = {f"actor.{name}" for name in MATRICES}
    heads = {"action_hidden.0.weight", "value_hidden.0.weight"}
    one = policy(optimizer="muon")
    assert names_of_matrices(one, one.optimizer) == of_actor | heads
    values = policy(GTrXLQPolicy, optimizer="muon")
    assert names_of_matrices(values, values.optimizer) == of_actor | {"action_hidden.0.weight"}
    soft = policy(GTrXLSACPolicy, BOX, optimizer="muon")
    both = of_actor | {f"critic.{name}" for name in MATRICES}
    assert names_of_matrices(soft, soft.optimizer) == both | {"action_hidden.0.weight", "action_hidden.2.weight"}
    assert {(group["trunk"], group["muon"]) for group in soft.optimizer.param_groups} == {
        (trunk, muon) for trunk in (False, True) for muon in (False, True)
    }
    model = offline(backbone=SMALL, optimizer="muon")
    kept = {name for name in MATRICES if "gate" not in name and "position" not in name}
    assert names_of_matrices(model.policy, model._optimizer) == kept
    for module, optimizer in [(one, one.optimizer), (soft, soft.optimizer), (model.policy, model._optimizer)]:
        held = [each for group in optimizer.param_groups for each in group["params"]]
        learned = getattr(module, "learned", list(module.parameters()))
        assert sorted(map(id, held)) == sorted(map(id, learned))


def test_what_decay_leaves_alone_keeps_its_own_groups() -> None:
    module = nn.ModuleDict({"a_hidden": nn.Linear(3, 4), "last": nn.Linear(4, 2)})
    module["a_hidden"].no_decay = ("bias",)  # type: ignore[assignment]
    groups = decay_groups(module, module.parameters())
    optimizer = make_optimizer("muon", module, groups, 0.1, {"weight_decay": 0.5})
    kinds = [(group["muon"], group["weight_decay"], len(group["params"])) for group in optimizer.param_groups]
    assert kinds == [(False, 0.5, 2), (True, 0.5, 1), (False, 0.0, 1)]
    assert over(optimizer, module, groups) is optimizer
    other = over(optimizer, module, groups[:1])
    assert [group["muon"] for group in other.param_groups] == [False, True] and other.defaults["weight_decay"] == 0.5


OPTIONS: dict[str, Any] = {"weight_decay": 0.3, "betas": (0.5, 0.7), "eps": 0.01, "momentum": 0.6, "fused": True}


def network() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"a_hidden": nn.Linear(3, 7), "last": nn.Linear(7, 2)})


def muon_of(module: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return make_optimizer("muon", module, [{"params": list(module.parameters())}], 0.1, options)


def descend(module: nn.ModuleDict, optimizers: list[torch.optim.Optimizer], steps: range) -> None:
    for step in steps:
        for optimizer in optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (1 + step)  # as schedules do
        inputs = torch.linspace(-1, 1, 12).view(4, 3)
        module["last"](module["a_hidden"](inputs).tanh()).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_it_does_what_the_two_optimizers_of_torch_do() -> None:
    module, twin = network(), network()
    optimizer, (first, *rest) = muon_of(module, **OPTIONS), twin.parameters()
    muon = torch.optim.Muon([first], 0.1, 0.3, momentum=0.6, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(rest, 0.1, (0.5, 0.7), 0.01, 0.3, fused=True)
    assert [group["eps"] for group in optimizer.param_groups] == [0.01, MUON_EPS]
    descend(module, [optimizer], range(3))
    descend(twin, [muon, adamw], range(3))
    assert_equal(module, twin)
    assert len(optimizer.state) == 4


@pytest.mark.parametrize("way", ["copy", "load_state_dict", "restore_optimizer"])
def test_it_goes_on_from_its_state_as_if_it_had_never_stopped(way: str) -> None:
    whole, half = network(), network()
    descend(whole, [muon_of(whole, **OPTIONS)], range(5))
    optimizer = muon_of(half, **OPTIONS)
    descend(half, [optimizer], range(3))
    if way == "copy":
        half, optimizer = copy.deepcopy((half, optimizer))  # together, so that it holds the copied parameters
    elif way == "load_state_dict":
        stored, optimizer = optimizer.state_dict(), muon_of(half)
        optimizer.load_state_dict(stored)  # options too
    else:
        stored, optimizer = optimizer.state_dict(), muon_of(half, **OPTIONS)
        restore_optimizer(optimizer, stored)
    descend(half, [optimizer], range(3, 5))
    assert_equal(half, whole)


def test_a_state_of_another_shape_or_kind_is_refused_by_its_name() -> None:
    module = network()
    optimizer = muon_of(module)
    descend(module, [optimizer], range(1))
    stored = optimizer.state_dict()
    check_optimizer(optimizer, stored)
    for state in ({"momentum_buffer": torch.zeros(3, 7)}, {"step": torch.zeros(())}):
        wrong = stored | {"state": stored["state"] | {3: state}}
        with pytest.raises(CheckpointError, match=r"optimizer\.state\.3"):
            check_optimizer(optimizer, wrong)


def test_a_group_that_is_added_later_and_says_nothing_is_adamws() -> None:
    optimizer, added = muon_of(network()), nn.Parameter(torch.ones(2, 2))
    optimizer.add_param_group({"params": [added]})
    added.grad = torch.ones(2, 2)
    optimizer.step()
    assert set(optimizer.state[added]) == {"step", "exp_avg", "exp_avg_sq"}
    assert bool((added < 1).all())


def test_adam_and_adamw_by_name_are_what_the_defaults_have_been() -> None:
    for kind in (GTrXLPolicy, GTrXLQPolicy, GTrXLSACPolicy):
        action, eps = (BOX if kind is GTrXLSACPolicy else CHOICE), (1e-5 if kind is GTrXLPolicy else 1e-8)
        for one in (policy(kind, action), policy(kind, action, optimizer="adam")):
            assert type(one.optimizer) is torch.optim.Adam
            for group in one.optimizer.param_groups:
                assert (group["lr"], group["eps"], group["fused"], group["weight_decay"]) == (0.01, eps, True, 0)
        other = policy(kind, action, optimizer="adamw").optimizer
        assert type(other) is torch.optim.AdamW and other.defaults["eps"] == eps


@pytest.mark.parametrize("name", ["adam", "adamw", "muon"])
@pytest.mark.parametrize("kind", [GTrXLPolicy, GTrXLQPolicy])
def test_parameters_of_a_subclass_are_learned_with_the_same_options(kind: type[Any], name: Any) -> None:
    class Further(kind):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.further = nn.Linear(2, 2)

    one = policy(Further, optimizer=name, optimizer_kwargs={"weight_decay": 0.3})
    before = one.optimizer.defaults
    one.complete()
    assert type(one.optimizer) is type(policy(kind, optimizer=name).optimizer)
    assert one.optimizer.defaults == before and before["weight_decay"] == 0.3
    assert any(each is one.further.weight for group in one.optimizer.param_groups for each in group["params"])


def test_a_name_and_no_name_learn_the_same_weights() -> None:
    def online(**kwargs: Any) -> Any:
        return GTrXLPPO("GTrXLPolicy", "CartPole-v1", n_steps=8, seed=0, policy_kwargs=kwargs)

    for make, name in ((online, "adam"), (offline, "adamw")):
        one, other = (make(backbone=SMALL, **given).learn(16) for given in ({}, {"optimizer": name}))
        assert_equal(one.policy, other.policy)


def test_another_optimizer_learns_other_weights() -> None:
    models = [offline(backbone=SMALL, optimizer=name).learn(3) for name in ("adam", "adamw", "muon")]
    found = [torch.nn.utils.parameters_to_vector(model.policy.parameters()) for model in models]
    assert not any(torch.equal(one, other) for one, other in ((found[0], found[1]), (found[1], found[2])))


def test_names_and_keywords_that_do_not_exist_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"optimizer must be one of 'adam', 'adamw', 'muon'.*did you mean 'adam' or"):
        policy(optimizer="adamm")
    with pytest.raises(ConfigError, match=r"optimizer 'adam': unknown setting policy_kwargs.optimizer_kwargs.momentum"):
        policy(optimizer_kwargs={"momentum": 0.5})
    with pytest.raises(ConfigError, match=r"optimizer_kwargs\.momentun; did you mean 'momentum'"):
        policy(optimizer="muon", optimizer_kwargs={"momentun": 0.5})
    assert isinstance(policy(optimizer="muon", optimizer_kwargs={"momentum": 0.5}).optimizer, Muon)
    with pytest.raises(ConfigError, match=r"policy_kwargs\.optimizer must be"):
        offline(optimizer="sgd")
    with pytest.raises(ConfigError, match="set weight_decay"):
        offline(optimizer_kwargs={"weight_decay": 0.5})
    with pytest.raises(ConfigError, match=r"optimizer 'adamw': unknown setting .*nesterov"):
        offline(optimizer_kwargs={"nesterov": False})
    assert offline(optimizer="muon", optimizer_kwargs={"momentum": 0.5})._optimizer.defaults["momentum"] == 0.5
    assert GTrXLSAC.check_policy({"optimizer": "muon"}, "policy.") == {"optimizer": "muon"}
