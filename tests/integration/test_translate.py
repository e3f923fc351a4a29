"""The commands translate and score with all their options."""

import copy
import gc
import json
import math
import os
import pickle
import shutil
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch

from seq2seq_cli import Translator
from seq2seq_cli.commands.score import rescore_nbest
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.decoding.lines.issues import Issues
from seq2seq_cli.decoding.lines.merging import Outputs
from seq2seq_cli.decoding.lines.segmentation import Bounds, segment_lines
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.errors import UserError
from seq2seq_cli.evaluation import evaluate, read_held_out, valid_text
from seq2seq_cli.native import library as native
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.loop import train


@pytest.fixture(scope="module")
def translator(trained) -> Translator:
    return Translator.load(trained, exact=True)


def test_python_api_matches_the_command(trained, seq2seq):
    assert Translator.load(str(trained)).translate(["1 2", "", "3"]) == ["one two", "", "three"]
    assert seq2seq("translate", trained, "1 2", "", "3").stdout == "one two\n\nthree\n"


def test_python_api_rejects_a_string_for_a_list(trained, translator):
    with pytest.raises(TypeError, match=r"translate\(\[line\]\)"):
        translator.translate("1 2")
    with pytest.raises(TypeError, match="text takes str, not bytes"):
        translator.translate([b"1 2"])
    assert translator.translate(iter(["1 2"])) == translator.translate(["1 2"])
    with pytest.raises(TypeError, match="search takes TranslationInput, not str"):
        translator.search(["1 2"])
    with pytest.raises(TypeError, match="score takes a list of pairs"):
        translator.score(("12", "34"))
    for pair in ((None, "1 2"), ("1 2", None), ("1 2", b"one two")):
        with pytest.raises(TypeError, match="text takes str"):
            translator.score([pair])
    with pytest.raises(TypeError, match="overrides is a list"):
        Translator.load(trained, "cpu", "decoding.beam_size=5")
    with pytest.raises(UserError, match="overfit=1"):
        Translator.load(trained, "cpu", iter(["overfit=1"]))
    config = load_config(str(trained / "config.yaml"), iter(["model.d_ff=48"]))
    with pytest.raises(UserError, match="d_ff"):
        train(config, str(trained), source=trained)
    with pytest.raises(TypeError, match="overrides is a list"):
        load_config(trained / "config.yaml", "decoding.beam_size=3")
    with pytest.raises(TypeError, match="allow_changed is a list"):
        train(config, trained, allow_changed="model.d_ff")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("text", value) for value in (None, b"1 2", ["1 2"])),
        *(("prefix", 3), ("tag", 3), ("features", None)),
        *(("required", value) for value in ("two", b"two", None, 3, [3])),
    ],
)
def test_input_names_the_field_of_another_type(field, value):
    with pytest.raises(TypeError, match=f"^{field} (takes str|is a list of words)"):
        TranslationInput(**{"text": "1 2", field: value})
    assert TranslationInput("1 2", required=["two"]) == TranslationInput("1 2", required=("two",))


@pytest.mark.parametrize("device", ["cuda:0", "gpu", "CPU", None])
def test_python_api_rejects_the_name_of_no_device(trained, device):
    with pytest.raises(UserError, match=f"device {device}: valid are auto, cpu, cuda"):
        Translator.load(trained, device)


def test_python_api_takes_a_generator_of_overrides_and_the_number_of_a_step(trained):
    overrides = (f"decoding.{option}" for option in ("beam_size=3", "n_best=2"))
    step = max(RunFolder(trained).all_weights())
    loaded = Translator.load(trained, "cpu", overrides, which=step)
    assert (loaded.config.decoding.beam_size, loaded.config.decoding.n_best) == (3, 2)
    assert loaded.translate(["1 2"]) == ["one two"]


LATE = """
import atexit, sys, threading
from seq2seq_cli import Translator
translator = Translator.load(sys.argv[1], "cpu")
def translate():
    print(*set(translator.translate(["1 2 3"] * 1000)), flush=True)
def translate_after_the_end():
    threading.main_thread().join()
    translate()
threading.Thread(target=translate_after_the_end).start()
atexit.register(translate)
"""


def test_many_lines_are_translated_after_the_end_of_the_main_thread(trained):
    done = subprocess.run(
        [sys.executable, "-c", LATE, trained],
        capture_output=True,
        check=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("one two three\n" * 2, "")


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_translator_can_be_copied_and_pickled(trained, precision):
    lines = ["1 2", "", "7 8 9"]
    one = Translator.load(
        trained, "cpu", [f"decoding.precision={precision}", "decoding.beam_size=2"]
    )
    both = Translator.ensemble(iter([one, one]))
    for translator in (one, both):
        for copied in (copy.deepcopy(translator), pickle.loads(pickle.dumps(translator))):
            assert copied.models[0] is not translator.models[0]
            assert type(copied.backend.decoder) is type(translator.backend.decoder)
            assert copied.translate(lines) == translator.translate(lines)


def test_weights_are_freed_with_their_translator(trained):
    """At once: a program that loads one run after the other never holds two."""
    gc.disable()
    try:
        translator = Translator.load(trained, "cpu")
        assert translator.translate(["1 2"]) == ["one two"]
        backend = weakref.ref(translator.backend)
        del translator
        assert backend() is None
    finally:
        gc.enable()


def test_an_ensemble_needs_a_translator():
    with pytest.raises(ValueError, match="needs a translator"):
        Translator.ensemble([])


def test_removed_option_is_accepted_with_its_default_only(trained, seq2seq, tmp_path):
    """Run folders of earlier versions name every option; another value is an error."""
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    config = (run / "config.yaml").read_text()
    for value, exit_code in (("false", 0), ("true", 2)):
        earlier = config.replace("decoding:\n", f"decoding:\n  cuda_graphs: {value}\n")
        (run / "config.yaml").write_text(earlier)
        assert seq2seq("translate", run, "1 2").exit_code == exit_code


FORKED = """
import os, sys
from seq2seq_cli import Translator
import torch
translator = Translator.load(sys.argv[1])
print(*translator.translate(["1 2 3"]), "torch._dynamo" in sys.modules, flush=True)
torch.ones(1 << 22).sum()  # has started threads
child = os.fork()
if child == 0:
    torch.ones(1 << 22).sum()
    print(*translator.translate(["1 2"]), torch.get_num_threads(), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(*translator.translate(["3"]), torch.get_num_threads())
"""


def test_translator_works_after_fork_and_without_torch_dynamo(trained):
    """Importing the compiler would take longer than a sentence."""
    command = [sys.executable, "-c", FORKED, trained]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    printed = subprocess.run(
        command, stdout=subprocess.PIPE, check=True, text=True, env=environment, timeout=120
    )
    assert printed.stdout == "one two three False\none two 1\nthree 2\n"


def test_nbest_lists_and_scores(trained, seq2seq, tmp_path):
    options = ("--beam-size", 4, "--n-best", 3, "--precision", "fp32")
    nbest = seq2seq("translate", trained, *options, "--format", "nbest", "1 2", "3").stdout
    entries = [line.split(" ||| ") for line in nbest.splitlines()]
    assert [number for number, *_ in entries] == ["0"] * 3 + ["1"] * 3
    assert [entries[0][1], entries[3][1]] == ["one two", "three"]
    found = json.loads(seq2seq("translate", trained, *options, "--format", "jsonl", "1 2").stdout)
    assert (found["src"], found["translation"]) == ("1 2", "one two")
    assert found["log_prob"] == pytest.approx(sum(found["token_log_probs"]))
    assert found["score"] == pytest.approx(found["log_prob"] / 3, abs=1e-3)  # two words and EOS
    assert len(found["n_best"]) == 2
    listed = tmp_path / "listed"
    listed.write_text("0 ||| one ||| two ||| log_prob= -1.0 ||| -0.5\n")
    scored = seq2seq("score", trained, "--src", "-", "--nbest", listed, stdin="1 2\n").stdout
    assert scored.startswith("0 ||| one ||| two ||| log_prob=")
    assert "need --format" in seq2seq("translate", trained, *options, "1 2").stderr


def test_many_lists_are_scored_together(trained, tmp_path):
    calls = []

    class Counting(Translator):
        def score(self, pairs):
            calls.append(len(pairs))
            return super().score(pairs)

    (tmp_path / "src").write_text("1\n" * 700)
    entries = (f"{n} ||| {word}\n" for word in ("two", "one", "six") for n in range(700))
    (tmp_path / "nbest").write_text("".join(entries))
    text = ParallelText.of(src=tmp_path / "src", tgt=tmp_path / "nbest")
    found = [line.split(" ||| ") for line in rescore_nbest(Counting.load(trained), text)]
    assert [int(number) for number, *_ in found] == [n for n in range(700) for _ in range(3)]
    assert [word for _, word, *_ in found[::3]] == ["one"] * 700
    assert calls == [2_000, 100]  # one list is in both


def test_alignments_link_the_right_words(trained, seq2seq):
    line = seq2seq("translate", trained, "--align", "--format", "tsv", "4 5 6").stdout
    source, translation, links = line.rstrip("\n").split("\t")
    assert (source, translation) == ("4 5 6", "four five six")
    assert [int(link.split("-")[1]) for link in links.split()] == sorted(range(3))
    found = json.loads(
        seq2seq("translate", trained, "--align", "--format", "jsonl", "4 5 6").stdout
    )
    assert [len(row) for row in found["attention"]] == [3] * 3
    assert all(sum(row) == pytest.approx(1, abs=1e-3) for row in found["attention"])
    assert "needs --format" in seq2seq("translate", trained, "--align", "4").stderr


def test_prefixes_required_and_banned_words(trained, seq2seq):
    line = seq2seq("translate", trained, "--prefix", "nine", "1 2").stdout
    assert line.startswith("nine")
    long = " ".join(["nine"] * 40)
    assert seq2seq("translate", trained, "--prefix", long, "1 2").stdout.startswith(long)
    required = ("--beam-size", 5, "--require", "eight")
    assert "eight" in seq2seq("translate", trained, *required, "1 2 3").stdout.split()
    message = seq2seq("translate", trained, "--require", "eight", "1").error()
    assert "need a beam search" in message
    banned = seq2seq("translate", trained, "--ban", "two", "--ban", "three", "1 2 3").stdout
    assert not {"two", "three"} & set(banned.split())


def test_impossible_constraints_are_rejected_or_relaxed(trained, seq2seq):
    outside = "'grue' is outside this run's target vocabulary"
    for *options, message in (
        ("--prefix", "grue", outside),
        ("-b", 5, "--require", "grue", outside),
        ("--ban", " ", "an empty word cannot be banned"),
        ("-b", 5, "--require", "two", "--ban", "two", "'two' is required, but contains a banned"),
        ("--prefix", "two ", "--ban", "two", "'two ' is required, but contains a banned word"),
    ):
        refused = seq2seq("translate", trained, *options, "1 2")
        assert refused.exit_code == 2, options
        assert message in refused.stderr
    columns = [
        line.count("\t")
        for line in seq2seq(
            "translate", trained, "-b", 2, "--align", "--format", "tsv", "--log-probs", "1", "", "2"
        ).stdout.splitlines()
    ]
    assert columns == [4, 4, 4]
    letters = '{"src": "1", "required": "two"}\n'
    broken = seq2seq("translate", trained, "--input-format", "jsonl", "-b", 2, stdin=letters)
    assert "not of the form" in broken.stderr


def test_constraints_of_single_lines(trained, seq2seq):
    lines = [
        {"src": "1 2", "prefix": "seven"},
        {"src": "3"},
        {"src": "4 5", "required": ["nine"]},
    ]
    stdin = "".join(json.dumps(line) + "\n" for line in lines)
    options = ("--input-format", "jsonl", "--beam-size", 5)
    output = seq2seq("translate", trained, *options, stdin=stdin).stdout.splitlines()
    assert output[0].startswith("seven")
    assert output[1] == "three"
    assert "nine" in output[2].split()
    message = seq2seq("translate", trained, *options, stdin='{"src": "1"}\n{"text": "2"}\n').error()
    assert "line 2: not of the form" in message
    for mistake in ('"tag": "<q>"', '"features": "V"'):
        stdin = f'{{"src": "1"}}\n{{"src": "2", {mistake}}}\n'
        assert "error: line 2: " in seq2seq("translate", trained, *options, stdin=stdin).error()


def test_output_length_options(trained, seq2seq):
    def num_words(line: str, **options: float) -> int:
        given = [f"--set=decoding.{name}={value}" for name, value in options.items()]
        return len(seq2seq("translate", trained, *given, line).stdout.split())

    line = "1 2 3 4 5 6"
    assert num_words(line) == 6
    assert num_words(line, max_len_factor=0, max_len_extra=2) == 2
    assert num_words(line, max_len_factor=0.5, max_len_extra=1) == 4
    assert num_words("1", min_len_extra=3) == 3
    assert num_words("1 2", min_len_factor=1.5, min_len_extra=1) == 4


def test_translations_that_end_at_the_length_limit_are_counted(trained, seq2seq):
    text, limit = "1 2 3\n4\n\n5 6 7 8\n", "hit the length limit"
    assert limit not in seq2seq("translate", trained, stdin=text).stderr
    short = ("--set=decoding.max_len_factor=0", "--set=decoding.max_len_extra=2")
    for more in ((), ("--beam-size=3",), ("--processes=2",)):
        cut = seq2seq("translate", trained, *short, *more, stdin=text)
        assert cut.stderr.count(limit) == 1
        assert "2 translations hit the length limit (decoding.max_len_factor, " in cut.stderr
    scores = [json.loads(seq2seq("eval", trained, *more, "--json").stdout) for more in ((), short)]
    assert scores[0]["num_at_length_limit"] == 0 < scores[1]["num_at_length_limit"]
    evaluated = seq2seq("eval", trained, *short)
    assert f"at_limit {scores[1]['num_at_length_limit']:>13,}" in evaluated.stdout
    assert limit in evaluated.stderr
    one = ("--set=decoding.max_len_extra=1", "--set=decoding.min_len_extra=1", short[0])
    assert limit not in seq2seq("translate", trained, *one, stdin=text).stderr  # as was asked for


def test_sampling_is_reproducible_with_its_seed(trained, seq2seq):
    def draw(seed: int) -> str:
        options = ("--sampling", "--n-best", 4, "--format", "nbest")
        settings = ("--set", f"decoding.seed={seed}", "--set", "decoding.temperature=3.0")
        return seq2seq("translate", trained, *options, *settings, "1 2 3", "4 5").stdout

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert len(draw(1).splitlines()) == 8


def test_options_of_sampling_without_it_are_pointed_out(trained, seq2seq):
    given = ("translate", trained, "1", *("--set", "decoding.temperature=0.7"))
    message = "no effect without --sampling: decoding.temperature, decoding.seed"
    assert message in seq2seq(*given, "--set", "decoding.seed=2").ok().stderr
    for sampling in (("--sampling",), ("--set", "decoding.sampling=true")):
        assert "no effect" not in seq2seq(*given, *sampling).ok().stderr
    message = seq2seq("translate", trained.parent, *given[2:]).error()
    assert "is not a run folder" in message


def test_ensemble_of_identical_models_matches_the_single_model(trained, seq2seq, tmp_path):
    one = seq2seq("translate", trained, "-b", 3, "--format", "tsv", "1 2").stdout
    two = seq2seq("translate", trained, "-b", 3, "--ensemble", trained, "--format", "tsv", "1 2")
    assert two.stdout.split("\t")[:2] == one.split("\t")[:2]


@pytest.mark.skipif("int8" not in native.precisions(), reason="needs the compiled decoder")
def test_auto_precision_is_int8_where_supported_and_fp32_for_evaluation(trained):
    assert Translator.load(trained, "cpu").backend.precision == "int8"
    assert Translator.load(trained, "cpu", exact=True).backend.precision == "fp32"
    for precision in ("fp32", "bf16"):
        given = [f"decoding.precision={precision}"]
        assert Translator.load(trained, "cpu", given, exact=True).backend.precision == precision


def test_all_precisions_translate_alike(trained, numbers, seq2seq):
    outputs = {
        precision: seq2seq(
            "translate", trained, "--precision", precision, "-i", numbers / "test.src"
        ).stdout.splitlines()
        for precision in ("fp32", "bf16", "int8", "auto")
    }
    for lines in outputs.values():
        same = sum(a == b for a, b in zip(lines, outputs["fp32"], strict=True))
        assert same >= 97


def test_long_lines_are_split_at_sentence_ends(translator):
    line = "1 2 . 3 4 ! 5 6"
    src = translator.tokenizers.src

    def cut(line: str, *bounds, each: bool = False) -> list[list[int]]:
        (pieces,), issues = segment_lines([line], src, Bounds(*bounds), each=each)
        assert [piece.ids for piece in pieces] == [
            src.to_ids(piece.sentence)[piece.first_token :][: len(piece.ids)] for piece in pieces
        ]
        words = line.split()
        for piece in pieces:
            first = words[piece.first_word]
            assert piece.sentence.split()[0] == first
        counts.append(issues)
        return [piece.ids for piece in pieces]

    counts: list[Issues] = []
    ids = src.to_ids(line)
    assert len(ids) == 8
    assert cut(line, 100, 100) == cut(line, 8, 8) == [ids]
    assert cut(line, 100, 7) == [ids[:3], ids[3:6], ids[6:]]  # at every end, none packed again
    assert cut(line, 100, 100, 2) == cut(line, 100, 100, each=True) == cut(line, 100, 7)
    assert cut(line, 100, 7, 1, "!") == [ids[:3], ids[3:]]
    assert cut("1 2 3 4 5 6 7", 3, 3) == [src.to_ids(part) for part in ("1 2", "3 4", "5 6 7")]
    assert cut("1 2 3 4 5 6 7", 7, 3) == [src.to_ids("1 2 3 4 5 6 7")]
    assert cut("", 7, 3) == cut(" \t", 7, 3, each=True) == []
    expected = [(), (), (1, 3), (1, 3), (), (1, 3), (1, 2), (0, 0, 1, 3), (), (), ()]
    assert counts == [Issues(*of_line) for of_line in expected]


def test_split_sentences_are_joined_in_order(translator):
    inputs = [TranslationInput("1 2 . 3 4"), TranslationInput("5")]
    found = translator.search(inputs, split_sentences=True)
    assert found[0][0].text.startswith("one two")
    assert found[0][0].text.endswith("three four")
    outputs = Outputs(log_probs=True, alignment=True)
    aligned = translator.search(inputs[:1], outputs, split_sentences=True)[0][0]
    assert max(source for source, _ in aligned.alignment) > 2  # counted through the whole line


def test_translating_with_two_processes_matches_one(trained, numbers, seq2seq, tmp_path):
    """There are more lines than one chunk holds."""
    alone, together = (
        seq2seq("translate", trained, "-i", numbers / "train.src", "--processes", count).stdout
        for count in (1, 2)
    )
    assert together == alone
    assert len(alone.splitlines()) == 3_000
    nowhere = seq2seq("translate", tmp_path / "no", "-i", numbers / "test.src", "--processes", 2)
    assert (nowhere.exit_code, nowhere.stdout) == (2, "")
    assert "there is no run folder" in nowhere.stderr


def test_translate_answers_a_slow_pipe_line_by_line(trained):
    """The test writes a line only after it has read the translation of the line before."""
    command = [sys.executable, "-m", "seq2seq_cli", "translate", str(trained)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        for digit, name in (("1", "one"), ("2", "two"), ("3", "three")):
            process.stdin.write(digit + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == name + "\n"
        process.stdin.close()
        assert process.wait(60) == 0


def test_ctrl_c_keeps_the_finished_lines(trained, tmp_path):
    output = tmp_path / "out"
    command = [sys.executable, "-m", "seq2seq_cli", "translate", str(trained), "-o", str(output)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
        process.stdin.write("1\n2\n")
        process.stdin.flush()
        while not (output.exists() and len(output.read_text().splitlines()) == 2):
            assert process.poll() is None
            os.sched_yield()
        process.send_signal(2)
        assert process.wait(60) == 130
    assert output.read_text() == "one\ntwo\n"


def test_a_validation_survives_a_model_that_computes_infinity(trained):
    run = Translator.load(trained, "cpu", exact=True)
    with torch.no_grad():
        run.model.decoder_norm.weight.fill_(3e38)
    broken = Translator(run.model, run.tokenizers, run.config, run.statistics)
    held_out = read_held_out(valid_text(run.config, trained), run.tokenizers, run.config.data)
    scores = evaluate(broken, held_out, decode=True)
    assert not math.isfinite(scores.loss)
    assert set(scores.hypotheses) == {""}


def test_sigterm_ends_all_processes_without_a_warning(trained):
    command = [sys.executable, "-m", "seq2seq_cli", "translate", str(trained), "--processes", "2"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("1\n")
        process.stdin.flush()
        assert process.stdout.readline() == "one\n"
        process.terminate()
        assert process.communicate(timeout=60) == ("", "terminated\n")
    assert process.returncode == 143


def test_a_sentence_that_is_the_name_of_a_file_is_pointed_out(trained, seq2seq, tmp_path):
    file = tmp_path / "test.src"
    file.write_text("1 2\n")
    result = seq2seq("translate", trained, file).ok()
    assert f"{file} is translated as a sentence; use --input to translate the file" in result.stderr


def test_json_lines_that_are_read_as_text_are_pointed_out(trained, seq2seq, tmp_path):
    file = tmp_path / "test.jsonl"
    file.write_text('{"src": "1 2"}\n')
    as_text = seq2seq("translate", trained, "--input", file)
    as_json = seq2seq("translate", trained, "--input", file, "--input-format", "jsonl")
    warning = f"{file} is translated as plain text; if it has JSON lines, use --input-format jsonl"
    assert as_text.exit_code == as_json.exit_code == 0
    assert (warning in as_text.stderr, warning in as_json.stderr) == (True, False)
    assert as_json.stdout == "one two\n"


def test_an_output_with_content_is_replaced_only_if_forced(trained, seq2seq, tmp_path):
    output = tmp_path / "test.tgt"
    for content in (None, "", "a reference\n"):
        if content is not None:
            output.write_text(content)
        result = seq2seq("translate", trained, "-o", output, "1 2")
        assert (result.exit_code, output.read_text()) == (
            (2, content) if content else (0, "one two\n")
        )
    assert f"the output {output} has content: give --force to replace it" in result.stderr
    assert seq2seq("translate", trained, "-o", output, "--force", "3").exit_code == 0
    assert output.read_text() == "three\n"
    assert seq2seq("translate", trained, "-o", "/dev/null", "3").exit_code == 0
    refused = seq2seq("translate", trained, "-o", f"{output}.gz", "3")
    assert (refused.exit_code, Path(f"{output}.gz").exists()) == (2, False)
    assert "would not be compressed" in refused.stderr


def test_score_prints_log_probs_of_given_translations(
    trained, numbers, seq2seq, tmp_path, translator
):
    files = ("--src", numbers / "test.src", "--ref", numbers / "test.tgt")
    lines = seq2seq("score", trained, *files).stdout.splitlines()
    references = (numbers / "test.tgt").read_text().splitlines()
    assert [line.split("\t")[2] for line in lines] == references
    scored = [
        json.loads(x) for x in seq2seq("score", trained, *files, "--json").stdout.splitlines()
    ]
    for line, found in zip(lines, scored, strict=True):
        log_prob, mean, text = line.split("\t")
        assert float(log_prob) == pytest.approx(sum(found["token_log_probs"]), abs=1e-3)
        assert float(mean) == pytest.approx(float(log_prob) / (len(text.split()) + 1), abs=1e-3)
        assert math.exp(found["log_prob"]) <= 1
    loss = json.loads(seq2seq("eval", trained, *files, "--loss-only", "--json").stdout)
    total = -sum(found["log_prob"] for found in scored)
    assert total / loss["num_tokens"] == pytest.approx(loss["loss"], abs=1e-3)


def test_score_reranks_nbest_lists(trained, seq2seq, tmp_path):
    (tmp_path / "src").write_text("1 2\n3\n")
    (tmp_path / "nbest").write_text(
        "0 ||| two two ||| x ||| 9\n1 ||| three ||| x ||| 1\n0 ||| one two ||| x ||| 1\n"
    )
    options = ("--src", tmp_path / "src", "--nbest", tmp_path / "nbest")
    lines = seq2seq("score", trained, *options).stdout.splitlines()
    assert [line.split(" ||| ")[1] for line in lines] == ["one two", "two two", "three"]
    (tmp_path / "nbest").write_text("7 ||| three\n")
    message = seq2seq("score", trained, *options).error()
    assert "number 7, but the source has 2 lines" in message
    for number in ("²", "٣", "-1", ""):  # digits to Python, which do not all make a number
        (tmp_path / "nbest").write_text(f"{number} ||| three\n")
        assert "line 1: not of the form" in seq2seq("score", trained, *options).error()


def test_incompatible_decoding_options_are_rejected(trained, seq2seq, tmp_path: Path):
    for options, message in (
        (
            ("--sampling", "-b", 3),
            "sampling and beam search exclude each other; set beam_size to 1",
        ),
        (("-b", 3, "--n-best", 4, "--format", "tsv"), "n_best 4 is greater than beam_size 3"),
        (("-b", 4, "--set", "decoding.diversity_groups=3"), "does not divide beam_size 4"),
        (("--ensemble", tmp_path), "is not a run folder"),
    ):
        result = seq2seq("translate", trained, *options, "1")
        assert result.exit_code == 2, options
        assert message in result.stderr
