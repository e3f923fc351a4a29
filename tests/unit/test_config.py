"""Configs: strict parsing, complete reference, error messages with positions."""

import runpy
from pathlib import Path

import pytest
import yaml
from commands import ROOT
from option_reads import options, options_read
from pydantic import BaseModel

from seq2seq_cli.config import loader
from seq2seq_cli.config.loader import config_yaml, flatten, load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import Corpus
from seq2seq_cli.errors import UserError

MINIMAL = "data: {train: {src: a.de, tgt: a.en}}\n"
LONG = "x" * 30_000


def load(tmp_path: Path, text: str, *overrides: str) -> Config:
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, overrides)


def mistakes(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load(tmp_path, text, *overrides)
    return str(caught.value).replace(str(tmp_path), "")


def test_number_formats(tmp_path):
    config = load(tmp_path, MINIMAL + "training: {lr: 3e-4, adam_epsilon: 1E-8, max_grad_norm: 2}")
    assert (config.training.lr, config.training.adam_epsilon) == (3e-4, 1e-8)
    assert config.training.max_grad_norm == 2.0


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ("training.max_steps=010000", "a whole number"),  # 4,096 to YAML 1.1
        ("training.max_steps=1:40", "a whole number"),  # 100
        ("training.max_steps=0o17", "a whole number"),  # 15 to YAML 1.2, text to YAML 1.1
        ("training.max_steps=0b11", "a whole number"),
        ("training.lr=1:30.5", "a number"),  # 90.5
        ("validation.decode=no", "true or false"),
        ("validation.decode=off", "true or false"),
    ],
)
def test_yaml_1_1_numbers_and_booleans_are_rejected(tmp_path, option, wanted):
    value = option.partition("=")[2]
    assert f"must be {wanted}, not '{value}'" in mistakes(tmp_path, MINIMAL, option)
    section, name = option.partition("=")[0].split(".")
    tagged = "float" if wanted == "a number" else "bool" if "true" in wanted else "int"
    text = MINIMAL + f"{section}: {{{name}: !!{tagged} {value}}}"
    assert f"'{value}' cannot be read as {tagged}" in mistakes(tmp_path, text)


def test_yaml_1_1_words_and_dates_stay_text(tmp_path):
    words = ["010", "1:30", "no", "on", "y", "2020-01-01", "=", "0o17", "1e3x"]
    config = load(tmp_path, MINIMAL, f"decoding.banned_words=[{', '.join(words)}]")
    assert list(config.decoding.banned_words) == words
    written = config_yaml(config)
    assert load(tmp_path, written) == config
    assert yaml.safe_load(written)["decoding"]["banned_words"] == words  # YAML 1.1 reads the same
    options = ("training.max_steps=10_000", "training.warmup_steps=0x10", "training.lr=1_0.5e-4")
    training = load(tmp_path, MINIMAL, *options).training
    assert (training.max_steps, training.warmup_steps, training.lr) == (10_000, 16, 10.5e-4)


def test_yaml_anchors_and_merges(tmp_path):
    text = "data: {train: &text {src: a, tgt: b}, valid: {<<: *text, tgt: c}}"
    valid = load(tmp_path, text).valid_text
    assert [str(path) for path in valid.files] == ["a", "c"]


def test_override_of_a_yaml_alias_leaves_the_anchor_unchanged(tmp_path):
    text = "data: {train: &text {src: a, tgt: b}, valid: *text}"
    config = load(tmp_path, text, "data.valid.src=c")
    assert (config.train_text.files[0], config.data.valid[0].src) == (Path("a"), Path("c"))


def test_override_switches_between_two_files_and_one_file_of_pairs(tmp_path):
    """Setting one form of a corpus unsets the other."""
    train = load(tmp_path, MINIMAL, "data.train.pairs=x.tsv").train_text
    assert [str(path) for path in train.files] == ["x.tsv"]
    text = "data: {train: {pairs: x.tsv}, valid: {pairs: y.tsv}}"
    config = load(tmp_path, text, "data.train.src=a", "data.train.tgt=b")
    assert [str(path) for path in config.train_text.files] == ["a", "b"]
    assert [str(path) for path in config.valid_text.files] == ["y.tsv"]
    kept = load(tmp_path, MINIMAL, "data.train.pairs=null").train_text
    assert kept.files == (Path("a.de"), Path("a.en"))


def test_config_paths_expand_home_and_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CORPORA", str(tmp_path))
    monkeypatch.delenv("NOWHERE", raising=False)
    for name in ("a", "b", "c.tsv"):
        (tmp_path / name).write_text("")
    written = "data: {train: {src: ~/a, tgt: $HOME/b}, valid: {pairs: '${CORPORA}/c.tsv'}}"
    (tmp_path / "x.yaml").write_text(written)
    overrides = ("tokenizer.reuse=~/runs/x", "decoding.banned_words=[~/a]")
    given = load_config(tmp_path / "x.yaml", overrides, is_given_now=True)
    assert given.train_text.files == (tmp_path / "a", tmp_path / "b")
    assert given.valid_text.files == (tmp_path / "c.tsv",)
    assert given.tokenizer.reuse == tmp_path / "runs/x"
    assert given.decoding.banned_words == ("~/a",)
    monkeypatch.setenv("STORE", "nosuch://text")
    with pytest.raises(UserError, match=r"nosuch://text/a "):
        load_config(tmp_path / "x.yaml", ["data.train.src=$STORE/a"], is_given_now=True)
    with pytest.raises(UserError, match=r"there is no file \$NOWHERE/a"):
        load_config(tmp_path / "x.yaml", ["data.train.src=$NOWHERE/a"], is_given_now=True)
    of_a_run = load_config(tmp_path / "x.yaml")  # perhaps somebody else's, who knows no variables
    assert [str(path) for path in of_a_run.train_text.files] == ["~/a", "$HOME/b"]


def test_layers_may_be_one_number(tmp_path):
    layers = load(tmp_path, MINIMAL + "model: {layers: 3}").model.layers
    assert (layers.encoder, layers.decoder) == (3, 3)
    layers = load(tmp_path, MINIMAL + "model: {layers: 3}", "model.layers.decoder=1").model.layers
    assert (layers.encoder, layers.decoder) == (3, 1)
    layers = load(tmp_path, MINIMAL, "model.layers={encoder: 10, decoder: 2}").model.layers
    assert (layers.encoder, layers.decoder) == (10, 2)


def test_normalization_may_be_one_name(tmp_path):
    def sides(*overrides: str, text: str = MINIMAL) -> tuple[str, str]:
        found = load(tmp_path, text, *overrides).tokenizer.normalization
        return found.src, found.tgt

    assert sides() == ("identity", "identity")
    assert sides("tokenizer.normalization=nfkc") == ("nfkc", "nfkc")
    assert sides("tokenizer.normalization={src: nfkc_cf}") == ("nfkc_cf", "identity")
    plain = MINIMAL + "tokenizer: {normalization: nfkc}"
    assert sides("tokenizer.normalization.src=nfkc_cf", text=plain) == ("nfkc_cf", "nfkc")
    assert sides("tokenizer.normalization.src=nfkc_cf") == ("nfkc_cf", "identity")


def test_config_is_frozen(tmp_path):
    with pytest.raises(ValueError, match="frozen"):
        load(tmp_path, MINIMAL).training.lr = 1.0


def test_all_config_errors_are_reported_at_once_with_their_lines(tmp_path):
    text = """\
data:
  train: {src: a.de, tgt: a.en}
model:
  d_model: 100
  head: 4
  heads: 7
  norm: poste
training:
  lr: high
  d_ff: 3
  max_steps: 1e3
"""
    assert mistakes(tmp_path, text, "training.seed=-1").splitlines() == [
        "/x.yaml has 7 mistakes",
        "  line 6: model.heads: 7 heads do not divide d_model 100 "
        "(valid: 1, 2, 4, 5, 10, 20, 25, 50)",
        "  line 7: model.norm: must be one of pre, post, not 'poste', did you mean post?",
        "  line 5: model.head: unknown option, did you mean model.heads?",
        "  line 11: training.max_steps: must be a whole number, not 1000.0",
        "  line 9: training.lr: must be a number, not 'high'",
        "  --set training.seed=-1: training.seed: must be at least 0, not -1",
        "  line 10: training.d_ff: unknown option, did you mean model.d_ff?",
    ]


def test_names_of_other_toolkits_have_counterparts():
    names = set(flatten(load_config(ROOT / "configs/reference.yaml")))
    assert names | {"model.layers"} >= loader._ELSEWHERE.keys()


def test_a_list_of_options_is_printed_once(tmp_path):
    message = mistakes(tmp_path, MINIMAL, "model.xyz=1", "model.zyx=2")
    assert message.count("unknown option") == 2
    assert message.count("unknown option (valid: d_model, heads") == 1


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("", (), "/x.yaml: data: this option is required"),
        ("data: {}", (), "/x.yaml, line 1: data.train: this option is required"),
        ("- 1", (), "/x.yaml: a config must be a mapping of options (preset, data, tokenizer"),
        ("a: [", (), "/x.yaml, line 1: "),
        ("a: 1\na: 2", (), "/x.yaml, line 2: a is given twice"),
        ("1: 2", (), "/x.yaml, line 1: '1' is not the name of an option"),
        ("a: \x07", (), "/x.yaml: this is not valid YAML"),
        (
            MINIMAL + "model: 3",
            (),
            "line 2: model: must be a section (a mapping of options), not 3",
        ),
        (MINIMAL + "xyz: 3", (), "line 2: xyz: unknown option (valid: preset, data, tokenizer"),
        (MINIMAL, ("lr",), "--set lr: write it as section.key=value"),
        (MINIMAL, ("training.lr=[",), "--set training.lr=[: the value is not valid YAML"),
        (MINIMAL, ("lr=3",), "--set lr=3: lr: unknown option, did you mean training.lr?"),
        (MINIMAL, ("training.max_tokens=3",), "did you mean training.tokens_per_batch?"),
        (MINIMAL, ("training.device=gpu",), "not 'gpu', did you mean cuda?"),
        (MINIMAL, ("training.gpu=true",), "did you mean training.device?"),
        (MINIMAL, ("model.encoder.num_layers=2",), "did you mean model.layers.encoder?"),
        (MINIMAL + "d_model: 256", (), "d_model: unknown option, did you mean model.d_model?"),
        ("train: {src: a, tgt: b}", (), "train: unknown option, did you mean data.train?"),
        (MINIMAL + "model: {'': 3}", (), "model.: unknown option (valid: d_model"),
        ("data: {train: {src:a}}", (), "src:a: unknown option; write a space after the colon"),
        (
            "data:\n train:{src: a, tgt: b}",
            (),
            "line 2: this is not valid YAML (a space is missing after",
        ),
        ("data:\n\ttrain: a", (), "line 2: this is not valid YAML (indent with spaces, not with"),
        ("data:\n  train: a\n valid: b", (), "line 3: this is not valid YAML (this line is indent"),
        (
            MINIMAL,
            ("model.layers='4'",),
            ": model.layers: must be a whole number, not '4': write it without quotes",
        ),
        (MINIMAL, ("model='4'",), "must be a section (a mapping of options), not '4'"),
        (MINIMAL, ("tokenizer.vocab_size='8000'",), "10,000,000, not '8000': write it without"),
        (MINIMAL, ("training.lr=.inf",), "training.lr: must be a finite number, not .inf"),
        (MINIMAL, ("training.lr=true",), "training.lr: must be a number, not true"),
        (MINIMAL, ("model.d_model=7",), "model.d_model: must be a multiple of 2, not 7"),
        (MINIMAL, ("model.dropout=1.0",), "model.dropout: must be less than 1.0, not 1.0"),
        (MINIMAL, ("validation.decode=no thanks",), "validation.decode: must be true or false"),
        (MINIMAL, ("validation={decode: false, metric: chrf}",), "metric: chrf needs validation."),
        (
            MINIMAL,
            ("training={max_steps: 10, warmup_steps: 20}",),
            "the learning rate would never reach its peak",
        ),
        (
            MINIMAL + "model: {d_model: 8}",
            ("model.d_model.x=3",),
            "model.d_model is an option, not a section",
        ),
        (MINIMAL, (f"training.seed={2**63}",), "training.seed: must be less than"),
        (MINIMAL, ("tokenizer.max_sentences=50",), "max_sentences: must be greater than 100"),
        (
            MINIMAL,
            ("data.train.pairs=a.tsv", "data.train.src=b"),
            "--set data.train.src=b: data.train: needs src and tgt, or pairs alone",
        ),
        ("data: {train: {src: a}}", (), "line 1: data.train: needs src and tgt, or pairs alone"),
        (
            MINIMAL,
            ("tokenizer={kind: word, min_character_frequency: 5}",),
            "min_character_frequency: kind word has no character entries",
        ),
        (MINIMAL, ("tokenizer.min_character_frequency=0",), "must be auto or a whole number"),
        (
            MINIMAL,
            ("tokenizer={kind: char, split_digits: true}",),
            "kinds char and word do not split numbers",
        ),
        (MINIMAL, ("tokenizer.graphemes=true",), "graphemes are characters: choose kind char"),
        (MINIMAL, ("tokenizer.user_defined_symbols=[x, y, x]",), "'x' is listed twice"),
        (
            MINIMAL,
            ("tokenizer.user_defined_symbols=[<s>]",),
            "'<s>' cannot be a symbol: it is",
        ),
        (
            MINIMAL,
            ("tokenizer.user_defined_symbols=[a b]",),
            "'a b' cannot be a symbol: it is",
        ),
        (MINIMAL, ("tokenizer.user_defined_symbols=['']",), "'' cannot be a symbol: it is"),
        (MINIMAL, ("tokenizer.user_defined_symbols=[▁]",), "'▁' cannot be a symbol: it is"),
        (MINIMAL, ("tokenizer.user_defined_symbols=[<0x0A>]",), "'<0x0A>' cannot be a symbol"),
        (
            MINIMAL,
            ("data.train={pairs: x.tsv, features: 2}",),
            "features have the field of source or target (2): name all three, as fields: [1, 3]",
        ),
        (
            MINIMAL,
            ("data.train={pairs: x.tsv, fields: [1, 2], features: 2}",),
            "features have the field of source or target (2): name all three, as fields: [1, 3]",
        ),
        (
            MINIMAL,
            ("data.train={pairs: x.tsv, fields: [1, 3], features: tags}",),
            "fields and features of a .tsv file are the numbers of its columns",
        ),
        (
            MINIMAL,
            ("data.train={pairs: x.tmx, fields: [de, en], features: tags}",),
            "only .tsv, .jsonl and src have features: leave features out",
        ),
        (MINIMAL, ("data.train.features=3",), "features of src are its second column"),
        (
            MINIMAL,
            ("data.train={pairs: x.tsv, fields: [1, 3], features: [2]}",),
            "features: must be one name or number, not [2]",
        ),
        (
            MINIMAL,
            ("data.train={pairs: x.tsv, fields: [1, 3], features: 2}", "data.direction=reverse"),
            "features belong to the source: leave direction at forward",
        ),
        (
            MINIMAL,
            ("model.feature_positions=false",),
            "model: feature_positions: false needs features in data.train",
        ),
        (MINIMAL, ("tokenizer.kind={src: bep, tgt: char}",), "kind.src: must be one of word, char"),
        (MINIMAL, ("validation.metrics=symbol_error_rate",), "validation.metrics: "),
        (MINIMAL, ("validation={ter: true, metrics: null}",), "validation.metrics: "),
        (
            MINIMAL,
            ("validation={decode: false, metrics: [symbol_error_rate]}",),
            "metrics: symbol_error_rate needs validation.decode: true",
        ),
        (MINIMAL, ("model.vocab_size=8000",), "did you mean tokenizer.vocab_size?"),
        (MINIMAL, ("tokenizer.vocab_size={src: 2, tgt: 9}",), "vocab_size.src: must be auto or"),
        (
            MINIMAL,
            ("tokenizer={kind: {src: char, tgt: word}, shared: true}",),
            "tokenizer.shared: the sides differ in their kind: leave shared out, or",
        ),
        (
            MINIMAL,
            ("tokenizer.kind={src: char, tgt: bpe}", "training.subword_sampling=0.1"),
            "subword_sampling: kind char has no subwords",
        ),
        (MINIMAL, ("tokenizer.normalization=nfc",), "must be one of nfkc, nfkc_cf, nfd, identity"),
        (MINIMAL, ("tokenizer.normalization={src: nfc}",), "normalization.src: must be one of"),
        # What the fuzzer found
        (
            MINIMAL,
            ("training.processes=0",),
            "must be auto or a whole number from 1 to 1,000, not 0",
        ),
        (
            MINIMAL,
            ("training.processes=[]",),
            "training.processes: must be auto or a whole number from 1 to 1,000",
        ),
        (MINIMAL + "model: {heads: !!int ''}", (), "line 2: '' cannot be read as int"),
        (MINIMAL + "model: {heads: !!bool x}", (), "line 2: 'x' cannot be read as bool"),
        (MINIMAL + "model: {heads: !!timestamp x}", (), "line 2: 'x' cannot be read as timestamp"),
        (MINIMAL + "model: &a {heads: *a}", (), "this is not valid YAML (its aliases expand"),
        (
            MINIMAL + "model: {heads: 0x" + "f" * 5_000 + "}",
            (),
            "heads: must be at most 2147483647",
        ),
        (MINIMAL, ('data.train.src="\\ud800"',), "the value is not valid YAML"),
        (MINIMAL, ("model.\udc80=1",), "write it as section.key=value"),
        (MINIMAL, ("decoding.temperature=1e-320",), "temperature: must be at least 1e-06, not"),
        (MINIMAL, ("decoding.length_penalty=1e3",), "a number from 0 to 10"),
        (MINIMAL, ("decoding.max_len_factor=1e300",), "must be auto or a number from 0 to 100"),
        (MINIMAL, (f"tokenizer.max_sentences={10**30}",), "must be at most 1000000000, not 1000"),
        (MINIMAL, ("model.layers=1000000",), ": model.layers: must be at most 1000, not 1000000"),
        (MINIMAL + "model: {norm: " + LONG + "}", (), "not 'xxxxx"),
        (MINIMAL, (f"tokenizer.vocab_size={LONG}",), "from 8 to 10,000,000, not 'xxxxx"),
        (MINIMAL, (f"data.train.tag='{LONG} x'",), "xxx... cannot be a symbol"),
        (
            MINIMAL,
            (f"tokenizer.user_defined_symbols=[{LONG}, {LONG}]",),
            "xxx... is listed twice",
        ),
        (MINIMAL, (f"data.languages={{src: {LONG}, tgt: de}}",), "xxx... is not a language code"),
        (MINIMAL, (f"data.train.fields={LONG}",), "of source and target, not 'xxx"),
        (MINIMAL, (f"data.train.fields=[{LONG}, {LONG}]",), "source and target are both xxx"),
        (MINIMAL, (f"data.train.features=[{LONG}]",), "one name or number, not ['xxx"),
        (
            MINIMAL,
            (f"data.train={{pairs: x.jsonl, fields: [{LONG}, x], features: {LONG}}}",),
            "xxx...): name all three",
        ),
    ],
)
def test_config_error_is_one_clear_line(tmp_path, text, overrides, expected):
    message = mistakes(tmp_path, text, *overrides)
    assert expected in message
    assert len(message.splitlines()) == 1 or "mistakes" in message
    assert len(message) < 1_000


def test_a_config_whose_run_could_not_be_read_is_refused(tmp_path, monkeypatch):
    """A run writes every value on a line of its own, which is longer than a list in brackets."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.de", "a.en"):
        (tmp_path / name).touch()
    words = "x" * 245_000 + ",y" * 3_000
    (tmp_path / "x.yaml").write_text(f"{MINIMAL}decoding: {{banned_words: [{words}]}}")
    with pytest.raises(UserError, match=r"x.yaml with every value written out, as a run keeps it"):
        load_config(Path("x.yaml"), is_given_now=True)


def test_text_that_looks_like_a_number_stays_text(tmp_path):
    config = load(tmp_path, MINIMAL, "decoding.banned_words=['1e3', '2020-01-01', 'null', '7']")
    assert load(tmp_path, config_yaml(config)) == config


def test_max_epochs_replaces_the_default_max_steps(tmp_path):
    def ends(*overrides: str) -> tuple[int | None, int | None]:
        training = load(tmp_path, MINIMAL, *overrides).training
        return training.max_steps, training.max_epochs

    assert ends() == (10_000, None)
    assert ends("training.max_epochs=50") == (None, 50)
    assert ends("training.max_epochs=50", "training.max_steps=7") == (7, 50)
    assert ends("training.max_hours=0.5") == (10_000, None)
    assert "cannot both be null" in mistakes(tmp_path, MINIMAL, "training.max_steps=null")


def test_missing_text_files_are_config_errors(tmp_path):
    (tmp_path / "x.yaml").write_text(MINIMAL)
    with pytest.raises(UserError) as caught:
        load_config(tmp_path / "x.yaml", is_given_now=True)
    assert f"line 1: data.train.src: there is no file a.de in {Path.cwd()}" in str(caught.value)
    assert f"line 1: data.train.tgt: there is no file a.en in {Path.cwd()}" in str(caught.value)
    assert "cd " not in str(caught.value)
    for name in ("a.de", "a.en"):
        (tmp_path / name).write_text("x\n")
    with pytest.raises(UserError, match=f"it is in the folder of the config: cd {tmp_path}"):
        load_config(tmp_path / "x.yaml", is_given_now=True)


@pytest.mark.parametrize("kind", ["missing", "folder", "binary"])
def test_missing_or_binary_config_file_is_rejected(tmp_path, kind):
    path = tmp_path / "x.yaml"
    if kind == "folder":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"x\.yaml"):
        load_config(path)


def test_reference_config_has_every_option_with_its_default():
    written = load_config(ROOT / "configs/reference.yaml")
    assert written == Config.model_validate({"data": {"train": written.data.train}})
    options = flatten(Config.model_validate({"data": {"train": written.data.train}}))
    tree = yaml.safe_load((ROOT / "configs/reference.yaml").read_text())
    for name in options:
        section = tree
        for part in name.split("."):
            assert part in section, f"{name} is missing from reference.yaml"
            section = section[part]


def test_reference_and_schema_are_up_to_date():
    generated = runpy.run_path(str(ROOT / "configs/make_reference.py"))
    for name, text in generated["generated"]().items():
        written = (ROOT / "configs" / name).read_text(encoding="utf-8")
        assert written == text, "run python configs/make_reference.py"


def test_every_option_has_a_description():
    described = runpy.run_path(str(ROOT / "configs/make_reference.py"))["descriptions"]()

    def undescribed(section: type[BaseModel]):
        for name, field in section.model_fields.items():
            if len(field.description or described[section.__name__].get(name, "")) < 10:
                yield f"{section.__name__}.{name}"
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                yield from undescribed(field.annotation)

    assert [*undescribed(Config), *undescribed(Corpus)] == []


def test_every_option_is_read_by_the_package():
    reads = options_read()
    unread = [name for name, owner in options(Config) if (owner, name.split(".")[-1]) not in reads]
    assert unread == []


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda p: p.name)
def test_every_shipped_config_loads(path):
    load_config(path)
