"""``rltransformers collect``: record behaviors as a dataset."""

import argparse

from rltransformers.cli.printing import print_json
from rltransformers.cli.words import Parsers, add_threads, command, flag
from rltransformers.core.ranges import Environments, Episodes, Seed, Steps, WholeNumber


def add(commands: Parsers) -> None:
    """Its options and help."""
    parser = command(
        commands,
        "collect",
        "Record behaviors as a dataset.",
        """
Runs behaviors in an environment and writes their episodes as a Minari dataset, which `train` reads by its id
(dataset.id) and `inspect` describes. A behavior is written as one of

  random                                uniform actions
  demonstration:TwoGates                the demonstrations of this task of the package
  sb3:ALGORITHM:ZIP[:VECNORMALIZE.pkl]  a Stable-Baselines3 or sb3-contrib policy (ppo, a2c, sac, td3, dqn, tqc, ...);
                                        such files are pickles and can run code: use only ones you trust
  checkpoint:RUN                        an agent trained with this package: a run folder or a checkpoint in it; of
                                        recurrent_ppo write sb3:recurrentppo:RUN/last.zip
  export:FILE                           a policy in a file of `rltransformers export`; .pt2 files can run code
  MODULE:NAME                           your function with the arguments (observations, episode_starts, generator), or
                                        a class that is made from the two spaces and has such a method act

Several behaviors make a mixture; =WEIGHT behind one sets its share of the steps or episodes. With --keep-indices or
--drop-indices only a part of a vector observation is recorded, while the behavior sees all of it.

  rltransformers collect --env rltransformers/KeyToDoor-v0 --behavior random --steps 20000 --dataset key/random-v0
  rltransformers collect --env Hopper-v5 --behavior sb3:sac:sac.zip=1 --behavior random=2 --steps 100000 \\
      --dataset hopper/mixture-v0 --num-envs 8
""",
    )
    argument = parser.add_argument
    argument("--env", required=True, metavar="ID", help="Gymnasium id")
    argument("--env-kwargs", default="{}", metavar="JSON", help='keywords of the environment, as {"delay": 16}')
    argument(
        "--behavior", action="append", required=True, metavar="SPEC[=WEIGHT]", help="who acts; repeat for a mixture"
    )
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--steps", type=flag(Steps), metavar="N", help="steps; running episodes are finished")
    length.add_argument("--episodes", type=flag(Episodes), metavar="N", help="episodes, exactly that many")
    argument("--dataset", required=True, metavar="NAME-vN", help="id of the new Minari dataset")
    argument("--num-envs", type=flag(Environments), default=8, metavar="N", help="environments at once (default: 8)")
    argument("--seed", type=flag(Seed), default=0, help="same seed, same dataset (default: 0)")
    add_threads(parser, "1, or OMP_NUM_THREADS where it is set")
    argument("--deterministic", action="store_true", help="most likely actions in place of sampled ones")
    argument("--overwrite", action="store_true", help="replace an existing dataset of that id")
    part = parser.add_mutually_exclusive_group()
    part.add_argument(
        "--keep-indices", type=flag(WholeNumber), nargs="+", metavar="I", help="record only these observation entries"
    )
    part.add_argument(
        "--drop-indices", type=flag(WholeNumber), nargs="+", metavar="I", help="record all but these entries"
    )
    argument("--json", action="store_true", help="print what was recorded as JSON")


def run(arguments: argparse.Namespace) -> None:
    """Do it, and print what came of it."""
    from rltransformers.cli.collect import collect_dataset

    summary = collect_dataset(arguments)
    if arguments.json:
        print_json(summary)
    else:
        from rltransformers.data.description import summary_text

        print(f"{'dataset':<22} {summary['dataset']}\n{summary_text(summary)}")
