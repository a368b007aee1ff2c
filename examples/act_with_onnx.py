"""Plays an episode with a policy from a file: python examples/act_with_onnx.py policy.onnx CartPole-v1

Observations may be a Dict of arrays; the action is one number or array.
"""

import json
import sys

import gymnasium as gym
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
about = json.loads(session.get_modelmeta().custom_metadata_map["rltransformers.json"])
facts, types = about["metadata"], about["inputs"] | about["state"]


def tensor(name, value):
    """One row of the tensor ``name``, of its type and shape."""
    return np.broadcast_to(np.asarray(value, types[name]["dtype"]), [1, *types[name]["shape"][1:]])


environment = gym.make(sys.argv[2])
observation, _ = environment.reset(seed=0)
state = {name: tensor(name, facts["initial_state"][name]) for name in about["state"]}
start, reward, total = True, 0.0, 0.0
while True:
    values = {
        "observation": observation,
        "first": start,
        "start": start,
        "reward": reward,
        "greedy": True,
        "noise": 0.0,
    }
    if isinstance(observation, dict):
        values |= {f"observation.{name}": leaf for name, leaf in observation.items()}
    # Not a number asks for nothing: a policy with a return head then takes what it predicts.
    values["target_return"] = np.nan if facts.get("predicts_return") else facts.get("best_return")
    feed = {name: tensor(name, values[name]) for name in about["inputs"]}
    results = session.run(None, feed | {f"state.{name}": value for name, value in state.items()})
    outputs = dict(zip([output.name for output in session.get_outputs()], results, strict=True))
    state = {name: outputs[f"next.{name}"] for name in state}
    print("action", json.dumps(outputs["action"][0].tolist()))
    observation, reward, terminated, truncated, _ = environment.step(outputs["action"][0])
    start, total = False, total + float(reward)
    if terminated or truncated:
        break
print("return", total)
