"""Minari data sets as trajectories, and trajectories as Minari data sets, in the layout of its ``update_episodes``."""

import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from rltransformers.core.errors import ConfigError, DataError, did_you_mean, one_line
from rltransformers.core.files import file_lock, remove_left_overs, replacing_folder
from rltransformers.core.spaces import Space, leaf_spaces, leaf_values, nest_leaves
from rltransformers.data.checks import check_layout_of, damage
from rltransformers.data.hdf5 import HDF5Writer, Tree, check_file
from rltransformers.data.spaces import Options, prune_space
from rltransformers.data.trajectories import Leaves, Trajectories
from rltransformers.data.writer import TrajectoryWriter

LARGEST_VERSION = 999_999
EPISODES_AT_ONCE = 32
"""Episodes read while their file is open, for HDF5 keeps some 30 KB about each of them until the file closes."""


def is_local_minari(dataset: str) -> bool:
    """Whether a text is the id or the folder of a Minari data set on this machine."""
    return _holds_minari(Path(dataset).expanduser()) or _holds_minari(_folder(dataset))


def _folder(dataset_id: str | None = None) -> Path:
    """Where Minari keeps a data set, or all of them."""
    from minari.storage import get_dataset_path  # slow to import

    return Path(get_dataset_path(dataset_id))


def _holds_minari(folder: Path) -> bool:
    return (folder / "data" / "metadata.json").is_file()


def minari_files(dataset: Any) -> list[Any]:
    """Return the files of a data set (id, folder or object), and which of its episodes it has."""
    dataset = open_minari(dataset) if isinstance(dataset, str) else dataset
    files = sorted(path for path in Path(dataset.storage.data_path).glob("*") if path.is_file())
    return [*files, [int(index) for index in dataset.episode_indices]]


def open_minari(dataset: str) -> Any:
    """The ``MinariDataset`` of an id or folder on this machine, else DataError: nothing is ever downloaded."""
    import minari  # slow to import and needed for Minari data only

    folder, root = Path(dataset).expanduser(), _folder()
    if not _holds_minari(folder):
        folder = _folder(dataset)
        if not folder.exists() and any(folder.parent.glob(f".{folder.name}.*.before")):
            # The process that was replacing it was killed between two renames, or is replacing it right now.
            with suppress(DataError), writing_minari(dataset):
                pass
    if not _holds_minari(folder):
        local = [str(path.parent.parent.relative_to(root)) for path in root.glob("**/data/metadata.json")]
        hint = f" On this machine: {did_you_mean(dataset, local)}" if local else ""
        raise DataError(
            f"the Minari data set {dataset!r} is not in {root}; with network access run "
            f"`minari download {dataset}`, or set MINARI_DATASETS_PATH.{hint}"
        )
    with damage(f"the Minari data set {dataset!r} in {folder} cannot be opened", "download or record it again"):
        return minari.MinariDataset(folder / "data")


def read_minari(dataset: Any, options: Options) -> Trajectories:
    """Read a ``MinariDataset``, or the one of an id or folder on this machine."""
    dataset = open_minari(dataset) if isinstance(dataset, str) else dataset
    name = options.name or str(dataset.id)
    with damage(f"{name}: the stored episodes are damaged", "download or record the set again"):
        indices = [int(index) for index in dataset.episode_indices]
        raw = dataset.storage.read_raw_metadata(dataset.storage.data_path)
        stored_space, total_steps = dataset.observation_space, dataset.total_steps
        env_spec = raw.get("env_spec")
        env_id = str(json.loads(env_spec)["id"]) if env_spec else None
        read_space = prune_space(stored_space, options.observation_leaves)
        for file in sorted(Path(dataset.storage.data_path).glob("*.hdf5")):
            check_file(file)
        batches = [indices[start : start + EPISODES_AT_ONCE] for start in range(0, len(indices), EPISODES_AT_ONCE)]
        metadata = (each for batch in batches for each in dataset.storage.get_episode_metadata(batch))
        lengths = [int(each["total_steps"]) for each in metadata]
        wanted_space = prune_space(options.observation_space or stored_space, options.observation_leaves)
        spaces = wanted_space, options.action_space or dataset.action_space
        check_layout_of(spaces[0], read_space, "observation", name)
        check_layout_of(spaces[1], dataset.action_space, "action", name)
        writer = TrajectoryWriter(lengths, *spaces, name, options)
        episodes = (episode for batch in batches for episode in dataset.iterate_episodes(batch))
        for index, length, episode in zip(indices, lengths, episodes, strict=True):
            if len(episode.rewards) != length:
                raise DataError(
                    f"{name}: episode {index} has {len(episode.rewards)} steps on reading, its metadata say {length}; "
                    f"Minari's {raw.get('data_format')} reader cuts episodes above 32,767 steps: store the data as hdf5"
                )
            writer.add(
                nest_leaves(spaces[0], leaf_values(stored_space, episode.observations)),
                nest_leaves(spaces[1], leaf_values(dataset.action_space, episode.actions)),
                episode.rewards,
                episode.terminations,
                episode.truncations,
            )
    if sum(lengths) != total_steps:
        raise DataError(f"{name}: episodes hold {sum(lengths)} steps, the metadata say {total_steps}; write it again")
    names = ("ref_min_score", "ref_max_score", "algorithm_name", "eval_env_spec")
    facts = {key: raw[key] for key in names if raw.get(key) is not None and raw[key] != env_spec}
    facts |= {"format": "minari", "dataset_id": dataset.id}
    return writer.finish(facts, env_id=env_id, env_spec=env_spec)


def write_minari(
    trajectories: Trajectories,
    dataset_id: str,
    *,
    overwrite: bool = False,
    description: str | None = None,
    algorithm_name: str | None = None,
    author: str | None = None,
    code_permalink: str | None = None,
    ref_min_score: float | None = None,
    ref_max_score: float | None = None,
) -> Any:
    """The trajectories as a local Minari data set of format hdf5, opened; it appears complete or not at all.

    Images are stored without JPEG, so that they read back exactly. Floats take the type of the space. An environment of
    its own for evaluations, which a data set of Minari may name, is kept (``metadata["eval_env_spec"]``).

    Args:
        dataset_id: "(namespace/)name-v<number>"; namespaces have two letters or more.
        overwrite: replace a data set of that id.
        ref_min_score, ref_max_score: returns that ``minari.get_normalized_score`` maps to 0 and 1; both or neither.

    Raises:
        ConfigError: for an id of another form, or one reference score without the other.
        DataError: when the id exists and ``overwrite`` is False, when another process writes it, or when the last
            observations of episodes are unknown, which Minari stores.
    """
    check_dataset_id(dataset_id)
    if (ref_min_score is None) != (ref_max_score is None):
        raise ConfigError(f"give both reference scores or neither, got {ref_min_score} and {ref_max_score}")
    if not (trajectories.final_observations and trajectories.has_rewards):
        unknown = "rewards" if trajectories.final_observations else "the last observations of episodes"
        raise DataError(
            f"{trajectories.name}: {unknown} are unknown and Minari stores them; keep the data with "
            f"Trajectories.save(folder)"
        )
    facts: dict[str, Any] = {"algorithm_name": algorithm_name, "description": description}
    facts |= {"author": {author} if author else None, "code_permalink": code_permalink}
    facts |= {"ref_min_score": ref_min_score, "ref_max_score": ref_max_score}
    facts |= {"eval_env_spec": trajectories.metadata.get("eval_env_spec")}
    with writing_minari(dataset_id):
        return _write(trajectories, dataset_id, overwrite, facts)


def _write(trajectories: Trajectories, dataset_id: str, overwrite: bool, facts: Mapping[str, Any]) -> Any:
    import minari  # slow to import and needed for Minari data only
    from minari.dataset.minari_dataset import parse_dataset_id
    from minari.dataset.minari_storage import MinariStorage
    from minari.namespace import create_namespace, list_local_namespaces

    target = _folder(dataset_id)
    if (target / "data").exists() and not overwrite:
        raise DataError(
            f"the Minari data set {dataset_id!r} exists in {target}; raise its version or pass overwrite=True"
        )
    # Minari's listing skips hidden folders, so that an interrupted writing leaves nothing that looks like data
    with replacing_folder(target) as temporary:
        storage = MinariStorage.new(
            temporary / "data",
            observation_space=trajectories.observation_space,
            action_space=trajectories.action_space,
            env_spec=_env_spec(trajectories),
            jpeg_encoding=False,
        )
        version = importlib.metadata.version("minari")
        known = {key: value for key, value in facts.items() if value is not None}
        storage.update_metadata({"dataset_id": dataset_id, "minari_version": version, **known})
        _write_episodes(trajectories, next((temporary / "data").glob("*.hdf5")))
        totals = {"total_steps": trajectories.steps, "total_episodes": len(trajectories)}
        storage.update_metadata({**totals, "dataset_size": storage.get_size()})
        namespace = parse_dataset_id(dataset_id)[0]
        if namespace is not None and namespace not in list_local_namespaces():
            create_namespace(namespace)
    return minari.load_dataset(dataset_id)


@contextmanager
def writing_minari(dataset_id: str) -> Iterator[None]:
    """Lock the data set against other writers (DataError where there is one), and delete half-written files."""
    lock = _folder() / f".{dataset_id.replace('/', '%')}.lock"
    with file_lock(lock, f"the Minari data set {dataset_id!r}", DataError):
        remove_left_overs(_folder(dataset_id))
        yield


def check_dataset_id(dataset_id: str) -> None:
    """Raise unless ``dataset_id`` has the form of a Minari id."""
    from minari.dataset.minari_dataset import parse_dataset_id

    try:
        version = parse_dataset_id(dataset_id)[2]
        if version > LARGEST_VERSION:
            raise ValueError(f"its version is beyond {LARGEST_VERSION:,}")
        if not dataset_id.endswith(f"-v{version}"):
            raise ValueError(f"its version is written v{version}")
    except (ValueError, TypeError) as error:  # a missing version is a TypeError in Minari
        reason = "it has no version" if isinstance(error, TypeError) else one_line(error)
        raise ConfigError(
            f"{dataset_id!r} is no Minari id ({reason}); write (namespace/)name-v<number>, like 'hopper/mixture-v0', "
            "the namespace of two letters and more"
        ) from error


def _env_spec(trajectories: Trajectories) -> EnvSpec | None:
    if not trajectories.env_spec:
        return None
    way_out = "load the source again, or leave it out with dataclasses.replace(data, env_spec=None)"
    with damage(f"{trajectories.name}: its env_spec is not the specification of an environment", way_out):
        return EnvSpec.from_json(trajectories.env_spec)


def _write_episodes(trajectories: Trajectories, path: Path) -> None:
    """One group per episode, as ``MinariDataset`` reads them; arrays are contiguous, for episodes never grow."""
    observation_space, action_space = trajectories.observation_space, trajectories.action_space
    leaves = leaf_spaces(observation_space), leaf_spaces(action_space)
    with path.open("wb") as file:
        writer, groups = HDF5Writer(file), {}
        for index, steps in enumerate(trajectories.lengths.tolist()):
            episode = trajectories.episode(index)
            arrays = {
                "observations": _groups(nest_leaves(observation_space, _typed(episode.observations, leaves[0]))),
                "actions": _groups(nest_leaves(action_space, _typed(episode.actions, leaves[1]))),
                "rewards": np.asarray(episode.rewards, np.float64),
                "terminations": episode.terminations,
                "truncations": episode.truncations,
            }
            groups[f"episode_{index}"] = writer.tree(arrays, {"id": index, "total_steps": steps})
        writer.finish(writer.group(groups))


def _typed(rows: Leaves, leaves: Mapping[str, Space]) -> Leaves:
    return {path: np.asarray(rows[path], leaf.dtype) for path, leaf in leaves.items()}


def _groups(node: Any) -> Tree:
    """Nested arrays as Minari stores them: Tuples are groups of _index_0, _index_1."""
    if isinstance(node, tuple):
        return {f"_index_{index}": _groups(child) for index, child in enumerate(node)}
    return {key: _groups(child) for key, child in node.items()} if isinstance(node, dict) else node
