"""The recipes for clusters in examples/cluster, run with what is here."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from commands import ROOT, Command
from number_task import number_pairs, numbers_config, write_config

from seq2seq_cli.run_folder import RunFolder

RECIPES = ROOT / "examples/cluster"
# What train.slurm calls, for one machine: the command, its name, and signals for it.
SLURM = {
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; echo $$ > srun.pid; exec "$@"',
    "scancel": 'kill "-${1#--signal=}" "$(cat srun.pid)"',
    "scontrol": 'if [ "$1" = show ]; then echo 127.0.0.1; else echo "$@" >> requeued; fi',
}


# Jobs find the commands of the environment that is activated when they are submitted.
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def manifest(name: str) -> dict:
    return yaml.safe_load((RECIPES / name).read_text(encoding="utf-8"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "big.src"
    path.write_text("".join(f"{src}\n" for src, _ in number_pairs(40, seed=8)), encoding="utf-8")
    return path


@pytest.fixture
def whole(trained: Path, source: Path, seq2seq: Command) -> bytes:
    output = source.parent / "whole.tgt"
    assert seq2seq("translate", trained, "-i", source, "-o", output).exit_code == 0
    return output.read_bytes()


@pytest.mark.slow
def test_an_array_of_slurm_translates_what_one_job_translates(trained, source, whole):
    script, output = RECIPES / "translate.slurm", source.parent / "big.tgt"
    for number in (2, 1):
        task = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_TASK_COUNT": "2"}
        subprocess.run(
            ["bash", script, trained, source, output], check=True, env=ENVIRONMENT | task
        )
    subprocess.run(["bash", script, "--join", source, output], check=True, env=ENVIRONMENT)
    assert output.read_bytes() == whole


def test_manifests_run_commands_that_exist(seq2seq):
    pod = manifest("translate.kubernetes.yaml")["spec"]
    (command,) = pod["template"]["spec"]["containers"][0]["args"]
    assert f"--shard $n/{pod['completions']} " in command
    help_text = seq2seq("translate", "--help").stdout
    assert all(option in help_text for option in ("--input", "--shard", "--output"))
    worker = manifest("train.kubernetes.yaml")["spec"]["pytorchReplicaSpecs"]["Worker"]
    command = worker["template"]["spec"]["containers"][0]["command"]
    assert command[:4] == ["torchrun", "-m", "seq2seq_cli", "train"]
    assert command[5] in seq2seq("train", "--help").stdout
    command = manifest("translate.ray.kubernetes.yaml")["spec"]["entrypoint"].split()
    assert command[:2] == ["seq2seq", "translate-ray"]
    help_text = seq2seq("translate-ray", "--help").stdout
    assert all(word in help_text for word in command if word.startswith("--"))


def test_pods_follow_the_schema_of_kubernetes():
    """`pip install kubernetes-validate`, which is 100 MB."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    kubernetes_validate.validate(manifest("translate.kubernetes.yaml"), "1.33", strict=True)
    train = manifest("train.kubernetes.yaml")["spec"]["pytorchReplicaSpecs"]
    cluster = manifest("translate.ray.kubernetes.yaml")["spec"]["rayClusterSpec"]
    for group in (*train.values(), cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        template = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "pod"},
            "template": group["template"],
        }
        kubernetes_validate.validate(template, "1.33", strict=True)


def test_training_operator_knows_all_of_its_manifest():
    """Its models, from `pip install kubeflow-training`, leave out what they do not know."""
    kubeflow = pytest.importorskip("kubeflow.training")
    given = manifest("train.kubernetes.yaml")
    client = kubeflow.ApiClient()
    read = client.deserialize(SimpleNamespace(data=json.dumps(given)), "KubeflowOrgV1PyTorchJob")
    assert client.sanitize_for_serialization(read) == given


@pytest.mark.slow
def test_a_job_of_slurm_saves_and_requeues_itself(tmp_path):
    for name, body in SLURM.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    settings = numbers_config(tmp_path, max_steps=300, save_every=200, log_every=1)
    config, run = write_config(tmp_path, settings), tmp_path / "run"
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "here"}
    job["SLURM_CPUS_PER_TASK"] = "1"
    start = {"env": ENVIRONMENT | job | {"PATH": f"{tmp_path}:{ENVIRONMENT['PATH']}"}}
    start |= {"args": ["bash", RECIPES / "train.slurm", config, run], "cwd": tmp_path}
    with subprocess.Popen(**start, stderr=subprocess.PIPE, text=True) as script:
        for line in script.stderr:
            if line.startswith("step 20/"):
                script.send_signal(signal.SIGTERM)
                break
        rest = script.stderr.read()
    assert script.returncode == 0, rest
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    saved = RunFolder(run).last_checkpoint
    assert saved is not None and saved.name < "step-00000200"
    assert subprocess.run(**start, check=False).returncode == 0
    assert RunFolder(run).last_checkpoint == RunFolder(run).checkpoint(300)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("parallel"), reason="GNU parallel is not installed")
def test_gnu_parallel_translates_what_one_job_translates(trained, source, whole):
    shard = f"seq2seq translate {trained} -i {source} --shard {{}}/3 -o part-{{}} --processes 1"
    numbers = ["1", "2", "3"]
    subprocess.run(
        ["parallel", "--will-cite", shard, ":::", *numbers],
        check=True,
        cwd=source.parent,
        env=ENVIRONMENT,
    )
    parts = [f"part-{number}" for number in numbers]
    subprocess.run(
        ["seq2seq", "join", *parts, "-o", "out"], check=True, cwd=source.parent, env=ENVIRONMENT
    )
    assert (source.parent / "out").read_bytes() == whole


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("snakemake"), reason="Snakemake is not installed")
def test_snakemake_translates_what_one_job_translates(trained, source, whole):
    given = [f"run={trained}", f"input={source}", "output=out", "shards=3"]
    subprocess.run(
        ["snakemake", "--snakefile", RECIPES / "Snakefile", "--cores", "1", "--config", *given],
        check=True,
        cwd=source.parent,
        env=ENVIRONMENT,
    )
    assert (source.parent / "out").read_bytes() == whole
