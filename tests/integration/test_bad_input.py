"""Invalid configs and corpora: exit status 2, one clear message, no partial files."""

import json
import math
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from commands import Command, logged_points
from number_task import numbers_config
from safetensors.torch import load_file, save_file
from seams import before_update, raise_out_of_memory

Break = Callable[[Path, dict], object]


def option(name: str, value: object) -> Break:
    def set_option(folder: Path, config: dict) -> None:
        section = config
        *path, last = name.split(".")
        for part in path:
            section = section[part]
        section[last] = value

    return set_option


def text(name: str, content: bytes) -> Break:
    return lambda folder, config: (folder / name).write_bytes(content)


def pairs(name: str, content: bytes) -> Break:
    def use_pairs(folder: Path, config: dict) -> None:
        (folder / name).write_bytes(content)
        config["data"]["train"] = {"pairs": str(folder / name)}

    return use_pairs


def without(name: str) -> Break:
    return lambda folder, config: (folder / name).unlink()


def empty_files(folder: Path, config: dict) -> None:
    for side in ("src", "tgt"):
        (folder / f"train.{side}").write_bytes(b"")


def everything_too_long(folder: Path, config: dict) -> None:
    (folder / "train.src").write_bytes(b"1 2\n" * 800)
    config["data"]["max_length"] = 1


BROKEN: dict[str, tuple[Break, str]] = {
    "unknown option": (option("model.head", 3), "model.head: unknown option, did you mean"),
    "unknown section": (option("modle", {}), "modle: unknown option, did you mean model?"),
    "option of another section": (option("training.d_model", 8), "did you mean model.d_model?"),
    "text for a number": (option("training.lr", "fast"), "training.lr: must be a number"),
    "fraction for a count": (option("model.layers", 1.5), "layers: must be a whole number"),
    "number for a switch": (option("model.attention_bias", 1), "must be true or false, not 1"),
    "list for a section": (option("model", [1]), "model: must be a section"),
    "nothing for a section": (option("training", None), "training: must be a section"),
    "no layers": (option("model.layers", 0), "layers: must be greater than 0, not 0"),
    "negative dropout": (option("model.dropout", -0.1), "dropout: must be at least 0.0, not -0.1"),
    "dropout of everything": (option("model.dropout", 1.0), "dropout: must be less than 1.0"),
    "infinite rate": (option("training.lr", float("inf")), "must be a finite number, not .inf"),
    "heads that do not divide": (option("model.heads", 7), "7 heads do not divide d_model 64"),
    "odd d_model": (option("model.d_model", 63), "d_model: must be a multiple of 2, not 63"),
    "rotary cross-attention alone": (
        option("model", {"rotary_cross_attention": True}),
        "rotary_cross_attention: true needs positions: rotary in the same config",
    ),
    "rotary heads of an odd size": (
        option("model", {"d_model": 6, "heads": 2, "positions": "rotary"}),
        "positions: rotary needs heads of an even size, not 3",
    ),
    "unknown choice": (option("tokenizer.kind", "bep"), "not 'bep', did you mean bpe?"),
    "unknown norm": (option("model.norm", "both"), "must be one of pre, post, not 'both'"),
    "neither auto nor a number": (
        option("training.processes", "many"),
        "processes: must be auto or a whole number from 1 to 1,000, not 'many'",
    ),
    "no tokens": (option("training.tokens_per_batch", 0), "tokens_per_batch: must be auto or"),
    "warm-up without end": (option("training.warmup_steps", 999), "would never reach its peak"),
    "no training text": (option("data", {}), "data.train: this option is required"),
    "one side only": (option("data.train", {"src": __file__}), "needs src and tgt, or pairs alone"),
    "pairs of unknown form": (
        option("data.train", {"pairs": __file__}),
        "a .tsv, .jsonl, .tmx or .zip file",
    ),
    "missing file": (without("train.src"), "data.train.src: there is no file"),
    "missing validation file": (without("valid.tgt"), "data.valid.tgt: there is no file"),
    "metric without decoding": (
        option("validation", {"decode": False, "metric": "bleu"}),
        "metric: bleu needs validation.decode: true",
    ),
    "unequal lengths": (text("train.tgt", b"one\ntwo\n"), "differ in length"),
    "unequal validation": (text("valid.src", b"1\n" * 61), "differ in length"),
    "not UTF-8": (text("train.src", b"1\n" * 9 + b"\xff\n" * 2_991), "line 10, byte 1: not valid"),
    "UTF-16": (text("train.src", ("1\n" * 3_000).encode("utf-16")), "(is it UTF-16?)"),
    "empty files": (empty_files, "no pairs in"),
    "blank lines only": (text("train.src", b"\n" * 800), "800 have an empty side"),
    "everything too long": (everything_too_long, "800 are longer than data.max_length 1"),
    "TSV without tab": (pairs("x.tsv", b"1\tone\n2 two\n"), "line 2: needs 2 columns"),
    "broken JSON": (pairs("x.jsonl", b'{"src": "1", "tgt": "one"}\n{\n'), "line 2: not valid JSON"),
    "JSON without tgt": (
        pairs("x.jsonl", b'{"src": "1"}\n'),
        "line 1: needs text under the keys src and tgt",
    ),
    "half a gzip file": (pairs("x.tsv.gz", b"\x1f\x8b\x08\x00abc"), "not a complete gzip file"),
    "vocabulary too small": (
        option("tokenizer", {"kind": "bpe", "vocab_size": 8}),
        "tokenizer.vocab_size 8 is too small",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_invalid_input_gives_one_error_and_leaves_no_files(
    name: str, seq2seq: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cache = tmp_path / "cache"
    monkeypatch.setenv("SEQ2SEQ_CACHE", str(cache))
    folder = tmp_path / "text"
    folder.mkdir()
    config = numbers_config(folder)
    breaking, expected = BROKEN[name]
    breaking(folder, config)
    (folder / "x.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    for verb in ("train", "check"):
        run = ("--run-dir", tmp_path / "run") if verb == "train" else ()
        result = seq2seq(verb, folder / "x.yaml", *run)
        assert result.exit_code == 2, result.stderr
        progress, _, message = result.stderr.partition("error: ")
        assert expected in message
        assert "error" not in progress + message
        assert len(message.splitlines()) <= 4
        assert result.stdout == ""
    assert not (tmp_path / "run").exists()
    assert not [path for path in cache.rglob("*") if ".part" in path.name]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("train", "nowhere.yaml"), "there is no config file nowhere.yaml"),
        (("train",), "Missing argument 'CONFIG'"),
        (("translate", "nowhere", "x"), "there is no run folder nowhere"),
        (("translate", "my-run", "x"), "there is no run folder my-run; did you mean runs/my-run?"),
        (("translate", "my-run.yaml", "x"), "my-run.yaml is a file, not a run folder; did you"),
        (("inspect", "runs/my-run/config.yaml"), "run folder; did you mean runs/my-run?"),
        (("translate", "x.yaml", "x"), "x.yaml is a file, not a run folder\n"),
        (("translate", ".", "x"), ". is not a run folder: it has no config.yaml"),
        (("trian", "x.yaml"), "No such command 'trian'. Did you mean 'train', 'trim'?"),
        (("train", "x.yaml", "--sett", "a=b"), "No such option: --sett"),
        (("eval", ".", "--src", "a"), "give --src and --ref, or --pairs alone"),
        (("eval", ".", "--src", "a", "--ref=b", "--ref", "c"), "validation.merge_references=true"),
        (("eval", ".", "--src", "a", "--src=b"), "--src is given twice, but one text is read\n"),
        (("train", "x.yaml", "--device", "tpu"), "'--device': 'tpu' is not one of"),
        (("train", "."), ". is a folder, not a config file"),
        (("check", "x" * 30_000), f"error: {'x' * 97}...: File name too long\n"),
        (("check", "utf16.yaml"), "utf16.yaml is not UTF-8 text (byte 0)"),
        (("check", "list.yaml"), "list.yaml: a config must be a mapping of options"),
        (("check", "twice.yaml"), "twice.yaml, line 2: a is given twice"),
        (("check", "number.yaml"), "number.yaml, line 1: '1' is not the name of an option"),
        (("check", "x.yaml", "--set", "a"), "--set a: write it as section.key=value"),
        (("check", "x.yaml", "--set", "a=["), "--set a=[: the value is not valid YAML"),
        (("check", "x.yaml", "--set", "a=1", "--set", "a.b=1"), "a is an option, not a section"),
        (("diff", "nowhere", "."), "there is no run folder nowhere"),
        (("score", "."), "give --src and --ref, --pairs, or --src and --nbest"),
        (("score", ".", "--nbest", "a"), "--nbest requires --src, and excludes --ref and --pairs"),
        (("score", ".", "--nbest", "a", "--src", "b", "--json"), "--nbest prints an n-best list"),
        (("score", ".", "--pairs", "x.yaml"), "x.yaml must be a .tsv, .jsonl, .tmx or .zip file"),
        (("score", ".", "--pairs", "noext"), "noext must be a .tsv, .jsonl, .tmx or .zip file"),
        (("translate", ".", "x", "--align"), "--align needs --format tsv or jsonl"),
        (("translate", ".", "x", "--log-probs"), "--n-best and --log-probs need --format"),
        (("translate", ".", "x", "--set=decoding.n_best=3"), "--n-best and --log-probs need"),
        (
            ("export", ".", "--format", "ctranslate2", "-o", "."),
            ". exists and is not an empty folder",
        ),
        (
            ("export", ".", "--format", "ctranslate2", "-o", "\udcff"),
            "is not valid UTF-8: use another name",
        ),
    ],
)
def test_invalid_command_line_is_explained(seq2seq, arguments, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    configs = {
        "x": b"",
        "utf16": b"\xff\xfe",
        "list": b"[1]",
        "twice": b"a: 1\na: 2",
        "number": b"1: 2",
    }
    for name, content in configs.items():
        Path(f"{name}.yaml").write_bytes(content)
    Path("runs/my-run").mkdir(parents=True)
    for name in ("my-run.yaml", "runs/my-run/config.yaml"):
        Path(name).touch()
    Path("noext").touch()
    assert expected in seq2seq(*arguments).error()


def test_command_line_paths_expand_home_and_variables(trained, numbers, seq2seq, monkeypatch):
    """The shell expands neither `--src=~/x` nor what is quoted."""
    monkeypatch.setenv("HOME", str(numbers))
    monkeypatch.setenv("RUN", str(trained))
    files = ("--src=~/test.src", "--ref", "$HOME/test.tgt")
    expected = seq2seq(
        "eval", trained, "--src", numbers / "test.src", "--ref", numbers / "test.tgt"
    )
    assert seq2seq("eval", "$RUN", *files).stdout == expected.stdout
    output = numbers / "translated"
    assert seq2seq("translate", "~/run", "-i", "~/test.src", "-o", "~/translated").exit_code == 0
    assert len(output.read_text().splitlines()) == 100
    output.unlink()
    assert seq2seq("translate", "~/run", "--ensemble", "~/run", "1 2").stdout == "one two\n"
    refused = seq2seq("check", "~/nowhere.yaml")
    assert f"there is no config file {numbers}/nowhere.yaml" in refused.stderr


def test_translate_rejects_invalid_arguments(trained, seq2seq, tmp_path):
    (tmp_path / "in").write_text("1\n")
    out = tmp_path / "out"
    cases = {
        "give sentences or --input, not both": ("1", "--input", tmp_path / "in"),
        "is the input file": ("-i", tmp_path / "in", "-o", tmp_path / "in"),
        "there is no file": ("-i", tmp_path / "missing", "-o", out),
        "a trained run takes only decoding.* options and validation.bleu_tokenize": (
            "1",
            "--set",
            "model.heads=2",
        ),
        "--set " + "x" * 97 + "...: a trained run": ("1", "--set", "x" * 30_000),
        "did you mean decoding.max_len_extra?": ("1", "--set", "decoding.max_len_xtra=2"),
        "No such file or directory": ("1", "-o", tmp_path / "no" / "folder"),
    }
    if not torch.cuda.is_available():
        cases["finds no CUDA device"] = ("1", "--device", "cuda")
    for expected, arguments in cases.items():
        result = seq2seq("translate", trained, *arguments)
        assert (result.exit_code, expected in result.stderr) == (2, True), (expected, result)
    assert not out.exists()


def copy_run(run: Path, target: Path) -> Path:
    return Path(shutil.copytree(run, target))


def test_damaged_run_folder_is_rejected_naming_the_file(trained, seq2seq, tmp_path):
    damage = {
        "model.safetensors": b"x" * 100,
        "src.model": b"not a model",
        "config.yaml": b"data: {}",
    }
    for name, content in damage.items():
        run = copy_run(trained, tmp_path / name)
        (run / name).write_bytes(content)
        assert name in seq2seq("translate", run, "1").error()
    run = copy_run(trained, tmp_path / "other shape")
    text = (run / "config.yaml").read_text().replace("d_model: 64", "d_model: 32")
    (run / "config.yaml").write_text(text)
    assert "does not fit the config" in seq2seq("translate", run, "1").error()


def test_damaged_or_missing_checkpoints_are_not_overwritten(trained, numbers, seq2seq, tmp_path):
    train = ("train", numbers / "numbers.yaml", "--set", "training.max_steps=400", "--run-dir")
    damage = {
        "state.json": b"{}",
        "weights.safetensors": b"x",
        "optimizer.safetensors": b"",
        "../../manifest.json": b"[1]",
    }
    for name, content in damage.items():
        run = copy_run(trained, tmp_path / Path(name).name)
        config = (run / "config.yaml").read_bytes()
        for folder in (run / "checkpoints").iterdir():
            (folder / name).write_bytes(content)
        result = seq2seq(*train, run)
        assert result.exit_code == 2, name
        assert Path(name).name in result.stderr
        assert (run / "config.yaml").read_bytes() == config
    run = copy_run(trained, tmp_path / "lost")
    shutil.rmtree(run / "checkpoints")
    assert "no checkpoint to resume from" in seq2seq(*train, run).error()
    assert logged_points(run)[0]["step"] == 20


def test_nan_and_infinite_weights_are_rejected(trained, seq2seq, tmp_path):
    run = copy_run(trained, tmp_path / "run")
    weights = load_file(run / "model.safetensors")
    for number in (math.nan, math.inf):
        name = max(weights)
        save_file(weights | {name: weights[name].fill_(number)}, run / "model.safetensors")
        message = seq2seq("translate", run, "--sampling", "1 2").error()
        assert f"model.safetensors is damaged: {name} contains" in message
    save_file(weights | {name: weights[name].double().fill_(1e300)}, run / "model.safetensors")
    result = seq2seq(
        "translate", run, "1 2"
    )  # other programs write doubles, which may be too great
    assert f"model.safetensors is damaged: {name} contains" in result.stderr


def test_a_model_that_computes_infinity_is_an_error_for_every_command(trained, seq2seq, tmp_path):
    run = copy_run(trained, tmp_path / "run")
    weights = load_file(run / "model.safetensors")
    huge = {name: x.fill_(3e38) for name, x in weights.items() if "norm" in name}
    save_file(weights | huge, run / "model.safetensors")
    for options in ((), ("--format", "jsonl"), ("--beam-size", 2), ("--sampling",)):
        result = seq2seq("translate", run, *options, "1 2", "3")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "computes NaN or infinity for line 1: seq2seq inspect RUN" in result.stderr
    (tmp_path / "x.tsv").write_text("1\tone\n")
    for verb in ("score", "eval"):
        result = seq2seq(verb, run, "--pairs", tmp_path / "x.tsv", "--json")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "the model computes NaN or infinity: " in result.stderr


def test_score_and_eval_count_skipped_pairs(trained, seq2seq, tmp_path):
    run = copy_run(trained, tmp_path / "run")
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("on_bad_line: error", "on_bad_line: skip"))
    (tmp_path / "x.tsv").write_text("1\tone\nno tab\n2\ttwo\n")
    for verb in ("score", "eval"):
        result = seq2seq(verb, run, "--pairs", tmp_path / "x.tsv").ok()
        assert "x.tsv: skipped 1 line that cannot be read" in result.stderr
    options = ("--json", "--worst", 2)
    report = json.loads(seq2seq("eval", run, "--pairs", tmp_path / "x.tsv", *options).stdout)
    assert {line["line"] for line in report["worst"]} == {1, 3}


def test_score_refuses_pairs_whose_memory_would_grow_with_the_square(trained, seq2seq, tmp_path):
    (tmp_path / "x.tsv").write_text(f"1\tone\n{'1 ' * 5_000}\tone\n")
    message = seq2seq("score", trained, "--pairs", tmp_path / "x.tsv").error()
    assert "a pair has 5,000 tokens; pairs are scored up to" in message
    assert "It begins with: 1 1 1" in message


def test_deeply_nested_json_is_rejected(trained, numbers, seq2seq, tmp_path):
    deep = '{"src": ' + "[" * 9_999
    message = seq2seq("translate", trained, "--input-format", "jsonl", stdin=deep).error()
    assert "line 1: not of the form" in message
    run = copy_run(trained, tmp_path / "run")
    (run / "manifest.json").write_text(deep)
    more = ("--set", "training.max_steps=241")
    message = seq2seq("train", numbers / "numbers.yaml", "--run-dir", run, *more).error()
    assert "manifest.json is damaged: it is not JSON" in message


def test_model_larger_than_memory_is_rejected(numbers, seq2seq):
    large = ("--set", "model.d_model=65_536", "--set", "model.layers=1_000")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), limits[1]))
    try:
        result = seq2seq("check", numbers / "numbers.yaml", "--set", "model.d_ff=1_000_000", *large)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert "does not fit into memory" in result.error()


def test_train_rejects_a_folder_with_other_files(numbers, seq2seq, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    message = seq2seq("train", numbers / "numbers.yaml", "--run-dir", tmp_path).error()
    assert "not empty (it contains thesis.tex)" in message
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_resuming_drops_truncated_metrics_lines(trained, numbers, seq2seq, tmp_path):
    run = copy_run(trained, tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(f'\n[1]\n{{"step": 241, "x": 1}}\n{{"step": 1e999}}\n{"[" * 9_999}\n{{"step": 3')
    more = ("--set", "training.max_steps=241")
    assert seq2seq("train", numbers / "numbers.yaml", "--run-dir", run, *more).exit_code == 0
    points = logged_points(run)
    assert [point["step"] for point in points][-3:] == [240, 241, 241]
    assert "x" not in points[-1]


def test_unsupported_requests_to_a_trained_run_are_rejected(
    trained, numbers, seq2seq, tmp_path, monkeypatch
):
    other = tmp_path / "other"
    text = ("--set", f"data.train.src={numbers / 'train.tgt'}", "--set", "training.max_steps=1")
    text = (*text, "--set", "training.warmup_steps=0", "--set", "data.valid=null")
    train = ("train", numbers / "numbers.yaml", "--run-dir", other)
    assert seq2seq(*train, *text).exit_code == 0
    cases = {
        "'xyz' is outside this run's target vocabulary": (
            *("translate", trained, "--beam-size", 2, "--require", "xyz", "1"),
        ),
        "an empty word cannot be banned": ("translate", trained, "--ban", "", "1"),
        "the runs of an ensemble must have the same vocabulary": (
            *("translate", trained, "--ensemble", other, "1"),
        ),
        "the run has no validation text: give --src and --ref, or --pairs": ("eval", other),
        "--format huggingface does not support this model: it needs tokenizer.shared": (
            *("export", trained, "--format", "huggingface", "--output", tmp_path / "x"),
        ),
        "did not start from": (*train, *text, "--from", trained),
    }
    for expected, arguments in cases.items():
        result = seq2seq(*arguments)
        assert (result.exit_code, expected in result.stderr) == (2, True), (expected, result)


def test_out_of_memory_outside_a_batch_is_reported(numbers, seq2seq, tmp_path):
    """As by the optimizer's state, which the first update allocates."""
    short = ("--set", "training.max_steps=2", "--set", "training.warmup_steps=0")
    with before_update(raise_out_of_memory):
        result = seq2seq("train", numbers / "numbers.yaml", "--run-dir", tmp_path / "run", *short)
    assert "out of memory outside a training batch" in result.error()
