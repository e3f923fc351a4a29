"""trim: a smaller vocabulary whose tokens have the same logits, and fine-tuning from there."""

import json
import shutil
from hashlib import sha256
from pathlib import Path

import pytest
import torch
import yaml
from commands import last_checkpoint, logged_points
from safetensors.torch import load_file

from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.extras.convert.missing_rows import IMPOSSIBLE
from seq2seq_cli.extras.convert.spm_vocab_tokenizer import SPECIAL_PIECES, SpmVocabTokenizer
from seq2seq_cli.model.parameters import unique_parameters
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.model.weights import save_tensors
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    Tokenizer,
    Tokenizers,
    load_tokenizers,
    save_tokenizers,
)

TEXT = ["der Hund läuft im Park", "die Katze schläft im Garten", "ein Haus ist groß ▁ <s>"] * 20
DOMAIN = ["der Hund schläft", "ein Garten ▁"]
TAG = ">>deu<<"
MODEL = {"d_model": 16, "heads": 2, "layers": 1, "d_ff": 32}


def learned(kind: str = "unigram", **options) -> Tokenizer:
    return Tokenizer.fit(TEXT, TokenizerConfig(kind=kind, vocab_size=340, **options))


def as_imported(tokenizer: Tokenizer) -> Tokenizers:
    """Return tokenizers with a vocabulary in another order, and without one of the pieces."""
    others = [p for p in reversed(tokenizer.pieces()[EOS_ID + 1 :]) if p != "▁Park"]
    pieces = [*SPECIAL_PIECES, TAG, *others]
    one = SpmVocabTokenizer.build(tokenizer.model, pieces, [TAG])
    return Tokenizers(one, one)


def write_run(
    folder: Path, tokenizers: Tokenizers, kind: str, *, imported: bool = False, **model
) -> Path:
    """Write a run with random weights; an imported one has no PAD and no BOS."""
    torch.manual_seed(1)
    options = MODEL | ({"output_bias": True} if imported else {}) | model
    sizes = len(tokenizers.src), len(tokenizers.tgt)
    network = Transformer(ModelConfig(**options), *sizes, tokenizers.is_shared, PAD_ID)
    if imported:
        with torch.no_grad():
            network.projection.bias.normal_()
            for token in (PAD_ID, BOS_ID):
                network.tgt_embedding.weight[token] = 0
                network.projection.weight[token] = 0
                network.projection.bias[token] = IMPOSSIBLE
    folder.mkdir()
    save_tokenizers(RunFolder(folder), tokenizers)
    save_tensors(unique_parameters(network), RunFolder(folder).model)
    settings = {
        "preset": "none",
        "data": {"train": [], "languages": {"src": "en", "tgt": "de"}},
        "tokenizer": {
            "kind": kind,
            "shared": tokenizers.is_shared,
            "vocab_size": {"src": sizes[0], "tgt": sizes[1]},
        },
        "model": options,
        "decoding": {"max_len_factor": 1, "max_len_extra": 5},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    (folder / "manifest.json").write_text('{"data": {}}')
    return folder


def runs(tmp_path: Path) -> dict[str, Path]:
    unigram, bpe = learned(user_defined_symbols=(TAG,)), learned("bpe")
    return {
        "own": write_run(tmp_path / "own", Tokenizers(unigram, unigram), "unigram"),
        "two": write_run(tmp_path / "two", Tokenizers(unigram, bpe), "bpe", tie_embeddings=False),
        "imported": write_run(
            tmp_path / "imported", as_imported(learned()), "spm_vocab", imported=True
        ),
    }


@pytest.fixture(scope="module")
def all_runs(tmp_path_factory) -> dict[str, Path]:
    return runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def domain(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "domain.tsv"
    path.write_text("".join(f"{line}\t{line}\n" for line in DOMAIN))
    return path


def trimmed(seq2seq, run: Path, text: Path, output: Path) -> Path:
    seq2seq("trim", run, "--text", text, "--output", output).ok()
    return output


@pytest.mark.parametrize("name", ["own", "two", "imported"])
def test_logits_of_kept_tokens_do_not_change(name, all_runs, domain, seq2seq, tmp_path):
    run = trimmed(seq2seq, all_runs[name], domain, tmp_path / "small")
    before, after = (Translator.load(r, "cpu", exact=True) for r in (all_runs[name], run))
    kept = before.tokenizers.tgt.ids_of(after.tokenizers.tgt.pieces())
    assert len(kept) == len({*kept}) == len(after.tokenizers.tgt) < len(before.tokenizers.tgt)
    for line in DOMAIN:
        logits = []
        for translator in (before, after):
            src = torch.tensor([[*translator.tokenizers.src.to_ids(line), EOS_ID]])
            tgt = torch.tensor([[BOS_ID, *translator.tokenizers.tgt.to_ids(line)]])
            with torch.inference_mode():
                logits.append(translator.model(src, tgt))
        assert logits[0][..., kept].equal(logits[1])


@pytest.mark.parametrize("name", ["own", "two", "imported"])
def test_text_becomes_the_same_pieces_and_nothing_new_is_unknown(
    name, all_runs, domain, seq2seq, tmp_path
):
    run = trimmed(seq2seq, all_runs[name], domain, tmp_path / "small")
    before, after = (Translator.load(r, "cpu").tokenizers for r in (all_runs[name], run))
    for one, other in zip(before, after, strict=True):
        for line in DOMAIN:
            assert other.pieces_of(other.to_ids(line)) == one.pieces_of(one.to_ids(line))
        for line in [*TEXT[:3], "Straßenbahn 你好 \ufdd0 ▁", f"{TAG} der Hund"]:
            ids, expected = other.to_ids(line), one.to_ids(line)
            assert ids.count(UNK_ID) == expected.count(UNK_ID)
            assert other.to_text(ids) == one.to_text(expected)
            assert len(other.spans(line)[1]) == len(ids) == len(other.to_pieces(line))
        assert other.user_defined_symbols() == one.user_defined_symbols()
    assert after.is_shared == before.is_shared


def test_a_trimmed_run_translates_scores_and_is_trimmed_again(all_runs, domain, seq2seq, tmp_path):
    lines = "".join(f"{line}\n" for line in DOMAIN)
    for name, run in all_runs.items():
        small = trimmed(seq2seq, run, domain, tmp_path / name)
        result = seq2seq("translate", small, stdin=lines).ok()
        assert len(result.stdout.splitlines()) == len(DOMAIN)
        assert seq2seq("eval", small, "--pairs", domain, "--json").exit_code == 0
        again = trimmed(seq2seq, small, domain, tmp_path / f"{name} again")
        for file in ("model.safetensors", *(p.name for p in small.glob("*.model"))):
            assert (again / file).read_bytes() == (small / file).read_bytes()


def test_a_trimmed_run_has_no_training_to_resume(all_runs, domain, seq2seq, tmp_path):
    small, config = (
        trimmed(seq2seq, all_runs["own"], domain, tmp_path / "small"),
        tmp_path / "c.yaml",
    )
    config.write_text(yaml.safe_dump({"data": {"train": {"pairs": str(domain)}}}))
    assert "was imported or trimmed" in seq2seq("train", config, "--run-dir", small).error()


@pytest.mark.parametrize(("name", "file_format"), [("own", "huggingface"), ("two", "ctranslate2")])
@pytest.mark.filterwarnings("ignore")
def test_trimmed_vocabularies_of_our_own_are_exported(
    name, file_format, all_runs, domain, seq2seq, tmp_path
):
    """`export` compares tokens, also of lines with ▁, which the written model itself quotes."""
    run = trimmed(seq2seq, all_runs[name], domain, tmp_path / "small")
    seq2seq("export", run, "--format", file_format, "-o", tmp_path / "out").ok()


def test_an_untrimmed_imported_run_translates_and_evaluates(all_runs, domain, seq2seq):
    """Tags at the start of a line are read, also where a line is several sentences."""
    result = seq2seq("translate", all_runs["imported"], stdin=f"{TAG} der Hund\nein Haus\n").ok()
    assert len(result.stdout.splitlines()) == 2
    assert seq2seq("eval", all_runs["imported"], "--pairs", domain, "--json").exit_code == 0
    translator = Translator.load(all_runs["imported"], "cpu")
    (tag,) = translator.tokenizers.src.tag_ids(TAG)
    (segments,), _ = translator.cut(
        [TranslationInput(f"{TAG} der Hund. Die Katze.")], split_sentences=True
    )
    assert [segment.control_ids for segment in segments] == [(tag,)] * len(segments)
    assert all(tag not in segment.ids for segment in segments)


def test_tags_of_a_trimmed_run_stay_tags(all_runs, domain, seq2seq, tmp_path):
    """Those that were typed too, before every sentence of a line."""
    run = shutil.copytree(all_runs["own"], tmp_path / "run")
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"]["train"] = [{"src": "a.en", "tgt": "a.de", "tag": TAG}]
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    found = []
    for path in (run, trimmed(seq2seq, run, domain, tmp_path / "small")):
        translator = Translator.load(path, "cpu")
        line = TranslationInput(f" {TAG} ein Hund. Ein Garten.")
        (segments,), _ = translator.cut([line], split_sentences=True)
        pieces_of = translator.tokenizers.src.pieces_of
        found.append([pieces_of(segment.src_ids) for segment in segments])
    assert found[0] == found[1]
    assert [pieces[0] for pieces in found[0]] == [TAG] * 2


def test_a_run_that_was_not_trained_here_has_no_frequencies(all_runs, domain, seq2seq):
    evaluated = seq2seq("eval", all_runs["imported"], "--pairs", domain, "--breakdown", "--json")
    assert json.loads(evaluated.ok().stdout)["by_training_frequency"] is None
    assert "no scores by training frequency: the run was not trained here" in evaluated.stderr


def test_a_run_with_general_text_is_trimmed(all_runs, domain, seq2seq, tmp_path):
    run, text = shutil.copytree(all_runs["own"], tmp_path / "run"), {"pairs": str(domain)}
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"] |= {"valid": text, "general": text}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    small = trimmed(seq2seq, run, domain, tmp_path / "small")
    assert seq2seq("translate", small, DOMAIN[0]).exit_code == 0


def test_a_trimmed_run_has_the_features_of_its_vocabulary(domain, seq2seq, tmp_path):
    options = TokenizerConfig(kind="unigram", vocab_size=340)
    tokenizer = Tokenizer.fit(TEXT, options, features=["<feature V>"])
    run = write_run(tmp_path / "run", Tokenizers(tokenizer, tokenizer), "unigram")
    small = trimmed(seq2seq, run, domain, tmp_path / "small")
    output = tmp_path / "small.argosmodel"
    message = seq2seq("export", small, "--format", "argos", "-o", output).error()
    assert "its sources have features" in message


def test_what_is_kept_is_reported(all_runs, domain, seq2seq, tmp_path):
    result = seq2seq("trim", all_runs["imported"], "--text", domain, "--output", tmp_path / "run")
    before, after = (
        load_file(r / "model.safetensors") for r in (all_runs["imported"], tmp_path / "run")
    )
    for row in (
        f"{len(before['projection.bias'])} → {len(after['projection.bias'])} (both sides)",
        f"{sum(p.numel() for p in before.values()):,} → {sum(p.numel() for p in after.values()):,}",
    ):
        assert row in result.stdout
    assert json.loads((tmp_path / "run/manifest.json").read_text())["trimmed"]["text"]


def test_a_folder_of_pairs_has_a_column_for_each_side(all_runs, seq2seq, tmp_path):
    text = tmp_path / "text/domain.tsv"
    text.parent.mkdir()
    text.write_text("".join(f"{line}\tein Haus\n" for line in DOMAIN))
    small = [tmp_path / "file", tmp_path / "folder"]
    for given, run in zip((text, text.parent), small, strict=True):
        trimmed(seq2seq, all_runs["two"], given, run)
    for name in ("src.model", "tgt.model"):
        assert (small[0] / name).read_bytes() == (small[1] / name).read_bytes()


def test_sentences_of_one_side_are_text_too(all_runs, seq2seq, tmp_path):
    text = tmp_path / "domain.de"
    text.write_text("".join(f"{line}\n" for line in DOMAIN))
    pairs = tmp_path / "domain.tsv"
    pairs.write_text("".join(f"{line}\t{line}\n" for line in DOMAIN))
    one, two = (
        trimmed(seq2seq, all_runs["two"], given, tmp_path / given.suffix[1:])
        for given in (text, pairs)
    )
    assert (one / "tgt.model").read_bytes() == (two / "tgt.model").read_bytes()
    command = ("trim", all_runs["two"], "--text", text, "--output", tmp_path / "new")
    assert "--fields is for a file of pairs" in seq2seq(*command, "--fields", 7, 9).error()


def test_a_text_without_tokens_trims_nothing(all_runs, domain, seq2seq, tmp_path):
    empty, output = tmp_path / "empty.de", tmp_path / "run"
    empty.write_text("\n\n")
    texts = ("--text", domain, "--text", empty)
    result = seq2seq("trim", all_runs["own"], *texts, "--output", output)
    assert (result.exit_code, result.stderr) == (2, f"error: there is no text in {empty}\n")
    assert not output.exists()


def test_words_cannot_be_trimmed_and_nothing_is_overwritten(trained, all_runs, domain, seq2seq):
    result = seq2seq("trim", all_runs["own"], "--text", domain, "--output", all_runs["two"])
    assert "is not an empty folder: name another folder" in result.error()
    message = seq2seq("trim", trained, "--text", domain, "--output", domain.parent / "new").error()
    assert "trim needs a vocabulary of subwords" in message
    assert not (domain.parent / "new").exists()


def test_the_current_folder_is_not_replaced(all_runs, domain, seq2seq, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = all_runs["own"]
    for command in (
        ("trim", run, "--text", domain, "--output", "."),
        ("export", run, "--format", "ctranslate2", "--output", "."),
        ("import", run, "."),
    ):
        assert ". is the current folder: name another folder" in seq2seq(*command).error()


def test_fine_tuning_keeps_the_rows_of_missing_tokens(all_runs, domain, seq2seq, tmp_path):
    """The start of a translation stays a zero vector, whatever the optimizer and the decay."""
    config = tmp_path / "config.yaml"
    for optimizer in ("adamw", "muon", "schedule_free_adamw"):
        training = {"optimizer": optimizer, "lr": 0.01, "weight_decay": 0.1, "ema_decay": 0.9}
        training |= {"max_steps": 3, "warmup_steps": 0, "device": "cpu", "processes": 1}
        if optimizer == "schedule_free_adamw":
            training.pop("ema_decay")
        config.write_text(
            yaml.safe_dump({"data": {"train": {"pairs": str(domain)}}, "training": training})
        )
        run = tmp_path / optimizer
        seq2seq("train", config, "--run-dir", run, "--from", all_runs["imported"]).ok()
        weights = load_file(run / "model.safetensors")
        before = load_file(all_runs["imported"] / "model.safetensors")
        assert weights.keys() == before.keys()
        for token in (PAD_ID, BOS_ID):
            assert not weights["tgt_embedding.weight"][token].any()
            assert weights["projection.bias"][token] == IMPOSSIBLE
        assert not weights["projection.bias"][EOS_ID:].equal(before["projection.bias"][EOS_ID:])
        saved = yaml.safe_load((run / "config.yaml").read_text())
        assert (saved["preset"], saved["model"]["d_model"]) == ("fine_tuning", 16)
        assert saved["model"]["output_bias"]
        tokenizers = load_tokenizers(
            RunFolder(run), TokenizerConfig(kind="spm_vocab", vocab_size=10_000)
        )
        assert tokenizers.src.tag_ids(TAG)
        seq2seq(
            "train",
            config,
            "--run-dir",
            run,
            "--from",
            all_runs["imported"],
            "--set",
            "training.max_steps=4",
            "--allow-changed",
            "training.max_steps",
        ).ok()


def as_earlier_version(path: Path) -> None:
    """Remove from a state what states did not have."""
    state = json.loads(path.read_text())
    del state["general_scored_by"], state["sha256"]
    content = json.dumps(state, sort_keys=True)
    path.write_text(json.dumps({**state, "sha256": sha256(content.encode()).hexdigest()}))


@pytest.mark.slow
def test_a_model_that_forgets_is_not_kept(all_runs, domain, seq2seq, tmp_path):
    """The first model is scored before it is trained, and stays if all others are worse."""
    general = tmp_path / "general.tsv"
    general.write_text("".join(f"{line}\t{line[::-1]}\n" for line in TEXT[:3]))
    text = {"pairs": str(domain)}
    data = {"train": text, "valid": text, "general": {"pairs": str(general)}}
    training = {"lr": 0.02, "max_steps": 6, "warmup_steps": 0, "device": "cpu", "processes": 1}
    config = tmp_path / "config.yaml"
    before = load_file(all_runs["imported"] / "model.safetensors")
    for tolerance in (0.0, 1e9):
        validation = {"every": 2, "unit": "steps", "metric": "loss", "patience": 9}
        validation["general_tolerance"] = tolerance
        settings = {"data": data, "training": training, "validation": validation}
        config.write_text(yaml.safe_dump(settings))
        run = tmp_path / f"{tolerance:g}"
        train = ("train", config, "--run-dir", run, "--from", all_runs["imported"])
        assert seq2seq(*train).exit_code == 0
        points = logged_points(run)
        scored = {p["step"]: p["general/loss"] for p in points if "general/loss" in p}
        assert [*scored] == [0, 2, 4, 6]
        valid = {p["step"]: p["valid/loss"] for p in points if "valid/loss" in p}
        allowed = [step for step, loss in scored.items() if loss <= scored[0] + tolerance]
        best = min(allowed, key=valid.__getitem__)
        state = json.loads((last_checkpoint(run) / "state.json").read_text())
        assert state["best_models"][0][0] == best
        assert state["general_before"] == scored[0]
        after = load_file(run / "model.safetensors")
        assert (best == 0) == all(after[name].equal(before[name]) for name in before)
        assert seq2seq(*train).exit_code == 0  # nothing is left to do
        moved = shutil.copy(general, tmp_path / "moved.tsv")
        seq2seq(*train, "--set", f"data.general.pairs={moved}").ok()
    assert best != 0
    # No later score can be compared with one on another scale.
    longer = (*train, "--set", "training.max_steps=8")
    other = ("--set", "validation.metric=chrf", "--allow-changed", "validation")
    assert "data.general is scored before the first update" in seq2seq(*longer, *other).stderr
    state = last_checkpoint(run) / "state.json"
    present = state.read_bytes()
    as_earlier_version(state)
    assert "data.general is scored before the first update" in seq2seq(*longer, *other).stderr
    seq2seq(*train).ok()
    state.write_bytes(present)
    looser = ("--set", "validation.general_tolerance=2e9", "--allow-changed", "validation")
    repeated = ("--set", f"data.train={[text, text]}", "--allow-changed", "data.train")
    for number, changed in enumerate((repeated, looser), 8):
        steps = ("--set", f"training.max_steps={number}")
        seq2seq(*train, *steps, *repeated, *changed).ok()
    message = seq2seq("average", run, "--last", 2).error()
    assert "must not get worse on data.general" in message
    assert seq2seq("average", run, "--last", 2, "--force").exit_code == 0
    late = (*train[:3], tmp_path / "late", *train[4:])
    seq2seq(*late, "--set", "data.general=null", "--set", "training.max_steps=2").ok()
    added = ("--allow-changed", "data.general", "--allow-changed", "training.max_steps")
    assert "it cannot be added" in seq2seq(*late, *added).stderr
    result = seq2seq("train", config, "--run-dir", tmp_path / "new")
    assert "data.general needs a run to start from" in result.stderr


def test_fine_tuning_needs_a_run_and_whole_matrices(all_runs, domain, seq2seq, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"data": {"train": {"pairs": str(domain)}}}))
    train = ("train", config, "--run-dir", tmp_path / "run")
    result = seq2seq(*train, "--set", "preset=fine_tuning")
    assert "preset: fine_tuning needs a run to start from" in result.stderr
    shard = ("--from", all_runs["imported"], "--set", "training.shard=full")
    shard += ("--set", "training.optimizer=adamw")
    assert "training.shard: full cannot keep the rows" in seq2seq(*train, *shard).stderr
    result = seq2seq(*train, "--set", "tokenizer.kind=spm_vocab")
    assert "kind spm_vocab cannot be learned" in result.stderr
