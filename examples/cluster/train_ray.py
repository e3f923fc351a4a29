"""Trains on several machines with Ray Train, in as many processes as there is room for:

    python train_ray.py configs/mine.yaml runs/mine --workers 1:4 --gpus-per-worker 1

Text and run folder are on storage that all machines see at the same paths. When a process or a
machine is lost, all processes start again from the last checkpoint, perhaps fewer; the same command
resumes a run.
"""

import argparse
import os
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from seq2seq_cli.machine import TORCH_DEFAULTS


def train_in_worker(given: dict[str, Any]) -> None:
    """Train as one of the processes whose process group Ray has initialised."""
    from seq2seq_cli.config.loader import load_config
    from seq2seq_cli.training.loop import train

    os.chdir(given["folder"])
    train(load_config(Path(given["config"])), Path(given["run_dir"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("run_dir")
    parser.add_argument("--workers", default="1", help="their number, or two as in 1:4")
    parser.add_argument("--cpus-per-worker", type=float, default=1)
    parser.add_argument("--gpus-per-worker", type=float, default=0)
    given = parser.parse_args()
    fewest, *most = map(int, given.workers.split(":"))
    folder = Path.cwd()
    ray.init(runtime_env={"env_vars": TORCH_DEFAULTS})
    trainer = TorchTrainer(
        train_in_worker,
        train_loop_config={
            "config": given.config,
            "run_dir": given.run_dir,
            "folder": str(folder),
        },
        scaling_config=ScalingConfig(
            num_workers=(fewest, *most) if most else fewest,
            use_gpu=given.gpus_per_worker > 0,
            resources_per_worker={"CPU": given.cpus_per_worker, "GPU": given.gpus_per_worker},
        ),
        run_config=RunConfig(
            storage_path=str((folder / given.run_dir).parent / "ray"),
            failure_config=FailureConfig(max_failures=100),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
