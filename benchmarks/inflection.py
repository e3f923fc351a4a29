"""Inflection compared with Yoyodyne: exact match after the same minutes, and speed of the same shape.

    python benchmarks/inflection.py quality DATA FOLDER --yoyodyne VENV/bin/yoyodyne --minutes 16 deu fin
    python benchmarks/inflection.py speed DATA FOLDER --yoyodyne VENV/bin/yoyodyne deu
    python benchmarks/inflection.py quality DATA FOLDER --members 4 deu fin

DATA has LANG.train.tsv, LANG.dev.tsv and LANG.test.tsv: a lemma, its features and the form.
Yoyodyne is installed in a virtual environment of its own: pip install yoyodyne==0.5.27; without
--yoyodyne only ours is trained. Everything has one thread; of an ensemble, each core trains a member.
"""  # noqa: E501

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import yaml

MODELS = ("RotaryTransformerModel", "PointerGeneratorRotaryTransformerModel")
HERE = Path(__file__).parent
EVERY = 4  # epochs between two of Yoyodyne's validations, which take 20 seconds or more
OURS = {"training.warmup_steps": 160, "model.dropout": 0.3, "training.weight_decay": 0.1}
OURS |= {"validation.every": 200, "validation.keep_best": 4}
FIELDS = ("--fields", "1", "3", "--features", "2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("quality", "speed"))
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("languages", nargs="+")
    parser.add_argument("--yoyodyne")
    parser.add_argument("--minutes", type=int, default=16, help="of Yoyodyne's training")
    parser.add_argument("--updates", type=int, default=1_600, help="of ours")
    parser.add_argument("--members", type=int, default=1, help="of an ensemble of ours")
    parser.add_argument("--set", action="append", default=[], help="options of ours")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.what == "speed" and not given.yoyodyne:
        parser.error("speed needs --yoyodyne")
    if given.members == 1:
        os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    for language in given.languages:
        (quality if given.what == "quality" else speed)(given, language)


def quality(given: argparse.Namespace, language: str) -> None:
    run = given.folder / f"ours-{language}-{given.seed}"
    options = {**OURS, "training.max_steps": given.updates, "training.seed": given.seed}
    minutes = seconds_of(lambda: train(given, language, run, options)) / 60
    dev, test = (exact(run, given.data / f"{language}.{part}.tsv") for part in ("dev", "test"))
    print(f"{language}  seq2seq train  {minutes:.1f} minutes  dev {dev}  test {test}", flush=True)
    for model in MODELS if given.yoyodyne else ():
        folder = given.folder / f"{model}-{language}-{given.seed}"
        limit = {"max_time": f"00:00:{given.minutes:02}:00", "check_val_every_n_epoch": EVERY}
        config = write_yoyodyne_config(given, language, model, folder, limit)
        seconds = seconds_of(lambda: call(given.yoyodyne, "fit", "--config", config))  # noqa: B023
        (best,) = folder.glob("**/best.ckpt")
        call(given.yoyodyne, "predict", "--config", config, "--ckpt_path", best)
        test = given.data / f"{language}.test.tsv"
        forms = [line.split("\t")[2] for line in test.read_text().splitlines()]
        predicted = (folder / "predictions.txt").read_text().splitlines()
        score = 100 * sum(map(str.__eq__, forms, predicted)) / len(forms)
        print(f"{language}  {model}  test {score:.1f}  {seconds / 60:.1f} minutes", flush=True)


def exact(run: Path, text: Path) -> str:
    """Return the exact match of a run on a text, in percent."""
    scores = call("seq2seq", "eval", run, "--pairs", text, *FIELDS)
    (line,) = (line for line in scores.splitlines() if line.startswith("exact_match"))
    return line.split()[1]


def speed(given: argparse.Namespace, language: str) -> None:
    """Seconds of many updates less those of few, and of many lines less those of few."""
    ours, theirs = given.folder / "speed-ours", given.folder / "speed-theirs"
    shape = {
        "model.d_model": 64, "model.d_ff": 256, "model.layers": 4, "model.dropout": 0.2,
        "training.pairs_per_batch": 100,
        "training.tokens_per_batch": 10_000, "training.optimizer": "adam", "training.lr": 0.001,
        "training.warmup_steps": 20, "training.precision": "fp32", "training.log_every": 1_000,
        "training.save_every": 1_000, "validation.every": 100_000, "validation.decode": "false",
        "validation.metric": "loss", "validation.metrics": "[]",
    }  # fmt: skip

    def we_train(updates: int) -> float:
        run = ours / f"{language}-{updates}-{time.time_ns()}"
        options = {**shape, "training.max_steps": updates}
        return seconds_of(lambda: train(given, language, run, options))

    def they_train(updates: int) -> float:
        limit = {"max_steps": updates, "limit_val_batches": 0, "num_sanity_val_steps": 0}
        config = write_yoyodyne_config(given, language, MODELS[0], theirs, limit)
        return seconds_of(lambda: call(given.yoyodyne, "fit", "--config", config))

    trained = given.folder / f"ours-shape-{language}"
    if not (trained / "model.safetensors").exists():
        train(given, language, trained, {**shape, "training.max_steps": 600, "training.lr": 0.003})
    (best,) = (given.folder / f"{MODELS[0]}-{language}-{given.seed}").glob("**/best.ckpt")
    lines = (given.data / f"{language}.test.tsv").read_text()

    def we_decode(times: int) -> float:
        text, output = given.folder / "sources.tsv", given.folder / "output.txt"
        sources = [line.rsplit("\t", 1)[0] for line in lines.splitlines()] * times
        text.write_text("".join(f"{line}\n" for line in sources))
        options = ("--precision", "fp32", "--input", text, "--output", output)
        return seconds_of(lambda: call("seq2seq", "translate", trained, *options))

    def they_decode(times: int) -> float:
        text = given.folder / "repeated.tsv"
        text.write_text(lines * times)
        config = write_yoyodyne_config(given, language, MODELS[0], theirs, {}, predict=text)
        arguments = ("predict", "--config", config, "--ckpt_path", best)
        return seconds_of(lambda: call(given.yoyodyne, *arguments))

    for turn in range(3):
        rates = [(we_train(700) - we_train(100)) / 600, (they_train(130) - they_train(30)) / 100]
        print(
            f"{language}  turn {turn}  seconds per update: ours {rates[0]:.4f}  Yoyodyne "
            f"{rates[1]:.4f}  ratio {rates[1] / rates[0]:.2f}",
            flush=True,
        )
        rates = [(we_decode(60) - we_decode(10)) / 50, (they_decode(3) - they_decode(1)) / 2]
        print(
            f"{language}  turn {turn}  seconds per {lines.count(chr(10)):,} lines: ours "
            f"{rates[0]:.3f}  Yoyodyne {rates[1]:.3f}  ratio {rates[1] / rates[0]:.1f}",
            flush=True,
        )


def train(given: argparse.Namespace, language: str, run: Path, options: dict[str, object]) -> None:
    lexicon, valid = (given.data / f"{language}.{part}.tsv" for part in ("train", "dev"))
    copies = given.folder / f"{language}.copies.tsv"
    copies.parent.mkdir(parents=True, exist_ok=True)
    copies.write_text(call(sys.executable, "data/make_copies.py", lexicon))
    corpora = (f"{{pairs: {path}, fields: [1, 3], features: 2}}" for path in (lexicon, copies))
    texts = {"data.train": f"[{', '.join(corpora)}]", "data.valid.pairs": valid}
    options = {**texts, "training.processes": 1, **options}
    given_options = [f"{name}={value}" for name, value in options.items()] + given.set
    settings = [part for option in given_options for part in ("--set", option)]
    ensemble = ("--ensemble", given.members) if given.members > 1 else ()
    call("seq2seq", "train", "configs/inflection.yaml", "--run-dir", run, *ensemble, *settings)


def write_yoyodyne_config(
    given: argparse.Namespace,
    language: str,
    model: str,
    folder: Path,
    limit: dict[str, object],
    predict: Path | None = None,
) -> Path:
    """Complete benchmarks/peers/yoyodyne.yaml; `limit` has options of its trainer."""
    config = yaml.safe_load((HERE / "peers/yoyodyne.yaml").read_text())
    parts = {"train": "train", "val": "dev", "test": "test", "predict": "test"}
    paths = {name: str(given.data / f"{language}.{part}.tsv") for name, part in parts.items()}
    logger = "lightning.pytorch.loggers.CSVLogger"
    config["seed_everything"] = given.seed
    config["trainer"] |= {
        "logger": [{"class_path": logger, "init_args": {"save_dir": str(folder)}}],
        **limit,
    }
    config["model"]["class_path"] = f"yoyodyne.models.{model}"
    config["data"] |= {"model_dir": str(folder), **paths}
    if predict is not None:
        config["data"]["predict"] = str(predict)
    if limit.get("limit_val_batches") == 0:
        config["checkpoint"] = {"filename": "last"}
    config["prediction"] = {"path": str(folder / "predictions.txt")}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(config))
    return path


def call(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr[-3_000:]}")
    return done.stdout


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
