"""seq2seq serve, as its clients see it: the contract, limits, access, and faults."""

import asyncio
import gzip
import http.client
import json
import os
import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from urllib.parse import urlencode

import pytest
from commands import Command
from number_task import as_ensemble, number_pairs
from safetensors.torch import load_file
from served import Served, serving
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from seq2seq_cli import Translator
from seq2seq_cli.extras.serve.request_fields import Fields, Limits
from seq2seq_cli.extras.serve.served_run import RunToServe
from seq2seq_cli.model.weights import save_tensors

SENTENCES = [names for _, names in number_pairs(60, seed=5)]


@pytest.fixture(scope="module")
def expected(names_run: Path) -> dict[str, str]:
    translations = Translator.load(names_run).translate(SENTENCES)
    return dict(zip(SENTENCES, translations, strict=True))


# The contract of LibreTranslate


@pytest.mark.slow
def test_an_ensemble_of_equal_members_answers_as_the_run(names_run, server: Served, tmp_path):
    ensemble = as_ensemble(tmp_path / "ensemble", [names_run, names_run])
    with serving(ensemble, "--processes", 1) as served:
        text = "three one four. nine"
        assert served.translate(text) == server.translate(text)


def test_json_form_and_query_get_the_same_answer(server: Served):
    fields = {"q": "three one four", "source": "en", "target": "de"}
    query = "&".join(f"{name}={text.replace(' ', '+')}" for name, text in fields.items())
    boundary = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'
        for name, text in fields.items()
    )
    answers = [
        server.ask("/translate", fields),
        server.ask("/translate", form=fields),
        server.ask(f"/translate?{query}", method="POST"),
        server.ask(
            "/translate",
            f"{boundary}--x--\r\n".encode(),
            headers={"Content-Type": "multipart/form-data; boundary=x"},
        ),
    ]
    for answer in answers:
        assert (answer.status, answer.json) == (200, {"translatedText": "3 1 4"})


@pytest.mark.parametrize("count", [1_100, 1_101])
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "multipart/form-data"])
def test_a_form_has_room_for_all_texts(kind, count):
    body = urlencode([("text", "one")] * count)
    if kind.startswith("multipart"):
        part = '--x\r\nContent-Disposition: form-data; name="text"\r\n\r\none\r\n'
        body, kind = f"{part * count}--x--\r\n", f"{kind}; boundary=x"

    async def receive() -> Message:
        return {"type": "http.request", "body": body.encode()}

    headers = [(b"content-type", kind.encode())]
    scope = {"type": "http", "app": None, "headers": headers, "query_string": b""}
    request = Request(scope, receive)
    with pytest.raises(HTTPException, match="fields") if count > 1_100 else nullcontext():
        fields = asyncio.run(Fields.read(request, Limits(batch=1_000)))
        assert fields.texts("text") == ["one"] * count


def test_fields_in_the_query_are_read_as_in_a_form(server: Served):
    """With a body in JSON, too, whose own fields are of JSON's types."""
    query = urlencode({"alignments": "true", "glossary": '{"two": "9"}', "alternatives": 1})
    fields = {"q": "one two", "source": "en", "target": "de"}
    answer = server.ask(f"/translate?{query}", fields)
    assert answer.json == server.translate(
        "one two", alignments=True, glossary={"two": "9"}, alternatives=1
    )
    assert server.ask(f"/translate?{query}", {**fields, "alignments": "true"}).status == 400
    assert server.ask(f"/translate?{query}", {**fields, "glossary": '{"two": "9"}'}).status == 400


def test_raw_utf_8_in_a_form_is_text(server: Served):
    data = "q=öne 😀&source=en&target=de".encode()
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = server.ask("/detect", data, headers=kind)
    assert answer.status == 200
    same = server.ask("/translate", data.replace(b"target=de", b"target=en"), headers=kind)
    assert same.json == {"translatedText": "öne 😀"}


def test_a_list_of_texts_is_answered_in_lists(server: Served, expected: dict[str, str]):
    answer = server.translate(SENTENCES)
    assert answer == {"translatedText": [expected[text] for text in SENTENCES]}
    assert server.translate([]) == {"translatedText": []}
    detected = server.translate(["one", "two"], source="auto")["detectedLanguage"]
    assert [each["language"] for each in detected] == ["en", "en"]


def test_the_detected_language_is_there_only_if_asked_for(server: Served):
    assert server.translate("one two").keys() == {"translatedText"}
    answer = server.translate("one two three", source="auto")
    assert answer["detectedLanguage"]["language"] == "en"
    assert 0 <= answer["detectedLanguage"]["confidence"] <= 100


def test_alternatives_are_others_than_the_best(server: Served):
    answer = server.translate("one two", alternatives=3)
    assert 1 <= len(answer["alternatives"]) <= 3
    assert answer["translatedText"] not in answer["alternatives"]
    assert len({*answer["alternatives"]}) == len(answer["alternatives"])
    assert server.translate("<b>one</b>", format="html", alternatives=1)["alternatives"] is not None


def test_languages_and_their_other_names(server: Served):
    assert server.ask("/languages").json == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    with_body = server.ask("/languages", form={"api_key": ""}, method="GET")
    assert with_body.status == 200
    assert server.translate("one", source="EN", target="de-DE") == {"translatedText": "1"}


def test_paragraphs_numbers_and_emoji_stay_as_they_are(server: Served):
    text = "  one two\r\n\r\n3 4 😀\n\tthree\n"
    assert server.translate("3 😀 ") == {"translatedText": "3 😀 "}
    answer = server.translate(text)["translatedText"]
    assert answer.startswith("  1 2")
    assert answer.endswith("\r\n\r\n3 4 😀\n\t3\n")


def test_html_keeps_its_markup(server: Served):
    answer = server.translate("<p>one <b>two</b></p>\n<hr> three &amp; 4", format="html")
    assert answer["translatedText"].startswith("<p>1 <b>2</b></p>\n<hr> 3")


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({}, 400, "Invalid request: missing q parameter"),
        ({"q": "a"}, 400, "Invalid request: missing source parameter"),
        ({"q": "a", "source": "zz", "target": "de"}, 400, "zz is not supported"),
        ({"q": "a", "source": "en", "target": "zz"}, 400, "zz is not supported"),
        (
            {"q": "a", "source": "de", "target": "en"},
            400,
            "English (en) is not available as a target language from German (de)",
        ),
        ({"q": 3, "source": "en", "target": "de"}, 400, "Invalid request: q must be a string"),
        (
            {"q": ["a", 3], "source": "en", "target": "de"},
            400,
            "Invalid request: q must be a string or a list of strings",
        ),
        (
            {"q": "a" * 5_001, "source": "en", "target": "de"},
            400,
            "Invalid request: request (5001) exceeds text limit (5000)",
        ),
        (
            {"q": ["a"] * 65, "source": "en", "target": "de"},
            400,
            "Invalid request: request (65) exceeds text limit (64)",
        ),
        (
            {"q": "a", "source": "en", "target": "de", "alternatives": 6},
            400,
            "Invalid request: alternatives parameter must be <= 5",
        ),
        (
            {"q": "a", "source": "en", "target": "de", "format": "pdf"},
            400,
            "Invalid request: pdf format is not supported",
        ),
        (
            {"q": "a", "source": "en", "target": "de", "glossary": {"a": 3}},
            400,
            'Invalid request: glossary must be an object such as {"term": "translation"}',
        ),
        ([1, 2], 400, "Invalid request: the body must be a JSON object"),
        (b"{", 400, "Invalid request: the body is not JSON"),
        (b"[" * 100_000, 400, "Invalid request: the body is not JSON"),
        (b"x" * 6_000_000, 413, "Request body exceeds 5185536 bytes"),
    ],
)
def test_errors_say_what_is_wrong(server: Served, fields: object, status: int, message: str):
    answer = server.ask("/translate", fields)
    assert (answer.status, answer.json) == (status, {"error": message})


def test_null_is_a_missing_field(server: Served):
    fields = {"q": "three one", "source": "en", "target": "de"}
    null = dict.fromkeys(("stream", "alignments", "alternatives", "format", "glossary"))
    assert server.ask("/translate", fields | null).json == server.ask("/translate", fields).json
    assert server.ask("/translate", {**fields, "stream": 0}).status == 400


def test_other_paths_methods_and_bodies(server: Served):
    assert server.ask("/detect").status == 405
    assert server.ask("/translate").status == 405
    assert server.ask("/nothing").json == {"error": "Not Found"}
    assert server.ask("/v2/nothing").json == {"message": "Not Found"}
    assert server.ask("/translate/", {}).status == 404
    kind = {"Content-Type": "text/plain"}
    assert server.ask("/translate", b"hello", headers=kind).status == 415
    refused = server.ask("/translate", gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})
    assert (refused.status, refused.json) == (415, {"error": "Unsupported content coding: gzip"})
    for glossary, message in (("abc", "is not JSON"), ("[1]", "must be a JSON object")):
        form = {"q": "a", "source": "en", "target": "de", "glossary": glossary}
        refused = server.ask("/translate", form=form)
        assert refused.json == {"error": f"Invalid request: glossary {message}"}
    assert server.ask("/v2/usage", headers={"Content-Type": "application/json"}).status == 200
    surrogate = server.ask(
        "/translate", b'{"q": "one \\ud800", "source": "\\udfff", "target": "x"}'
    )
    assert surrogate.status == 400


def test_settings_health_and_document(server: Served):
    settings = server.ask("/frontend/settings").json
    assert (settings["charLimit"], settings["keyRequired"]) == (5_000, False)
    assert settings["language"]["source"] == {"code": "en", "name": "English"}
    assert server.ask("/health").json == {"status": "ok"}
    document = server.ask("/spec").json
    known = {"/translate", "/languages", "/detect", "/health", "/metrics", "/imme", "/v2/translate"}
    assert known <= document["paths"].keys()


# More than the contract


def test_details_of_sentences_fit_the_text(server: Served):
    text = "one two. 😀 three"
    answer = server.translate(text, alignments=True, attention=True, log_probs=True)
    first, second = answer["sentences"]
    for sentence in (first, second):
        start = sentence["sourceStart"]
        assert text[start : start + len(sentence["source"])] == sentence["source"]
        start = sentence["targetStart"]
        translated = answer["translatedText"]
        assert translated[start : start + len(sentence["target"])] == sentence["target"]
        assert len(sentence["attention"]) == len(sentence["targetWords"])
        assert all(len(row) == len(sentence["sourceWords"]) for row in sentence["attention"])
        assert len(sentence["logProbs"]) == len(sentence["tokens"]) + 1
        for src, tgt in sentence["alignment"]:
            assert src < len(sentence["sourceWords"])
            assert tgt < len(sentence["targetWords"])
    alone = server.translate("one two", alignments=True)["sentences"][0]
    assert alone["alignment"] == [[0, 0], [1, 1]]


def test_a_glossary_is_kept_to(server: Served):
    plain = server.translate("one two")["translatedText"]
    assert plain == "1 2"
    answer = server.translate("one two", glossary={"two": "9", "seven": "7"})["translatedText"]
    assert "9" in answer.split()
    assert "7" not in answer.split()
    unknown = server.ask(
        "/translate",
        {"q": "one", "source": "en", "target": "de", "glossary": {"one": "uno"}},
    )
    assert unknown.status == 400
    assert "outside this run's target vocabulary" in unknown.json["error"]
    form = server.ask(
        "/translate",
        form={"q": "one", "source": "en", "target": "de", "glossary": '{"one": "5"}'},
    )
    assert "5" in form.json["translatedText"]


@pytest.mark.slow
def test_glossaries_work_after_requests_that_end_before_pytorch_is_imported(names_run: Path):
    with serving(names_run, "--processes", 1, "--time-limit", 0.5) as served:
        fields = {"q": "one", "source": "en", "target": "de", "glossary": {"one": "5"}}
        statuses = (served.ask("/translate", fields).status for _ in range(120))
        assert 200 in statuses


def test_details_of_much_text_are_refused(server: Served):
    def status_and_error(**fields: object) -> tuple[int, str | None]:
        request = {"q": "one", "source": "en", "target": "de", **fields}
        answer = server.ask("/translate", request)
        return answer.status, answer.json.get("error")

    words = "one " * 250
    assert status_and_error(q=[words, "x"], attention=True) == (
        400,
        "Invalid request: attention takes at most 1000 characters",
    )
    assert status_and_error(q=[words], attention=True) == (200, None)
    many = {f"word{number}": "1" for number in range(201)}
    assert (
        status_and_error(glossary=many)[1] == "Invalid request: glossary has more than 200 entries"
    )
    del many["word0"]
    assert status_and_error(glossary=many) == (200, None)
    message = "Invalid request: glossary has an entry of more than 200 characters"
    assert status_and_error(glossary={"x" * 201: "1"}) == (400, message)


def test_a_large_request_fits_an_idle_server(server: Served):
    """As many texts as are allowed, each of many sentences: more than wait at once."""
    texts = ["".join(f"{word}\n" for word in ("one", "two", "three", "four") * 40)] * 64
    expected = ["".join(f"{digit}\n" for digit in "1234" * 40)] * 64
    assert server.translate(texts)["translatedText"] == expected


def test_a_request_within_all_limits_has_no_body_beyond_one(server: Served):
    """Texts and glossary of characters that take most bytes, in JSON and in a form."""
    glossary = {chr(0x1F600 + n) * 200: "\U0001f600" * 200 for n in range(200)}
    fields = {"q": ["\U0001f600" * 5_000] * 64, "source": "en", "target": "en"}
    form = urlencode({**fields, "glossary": json.dumps(glossary)}, doseq=True).encode()
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    for answer in (
        server.ask("/translate", {**fields, "glossary": glossary}),
        server.ask("/translate", form, headers=kind),
    ):
        assert (answer.status, answer.json) == (200, {"translatedText": fields["q"]})


def test_text_in_the_target_language_stays(guarded: Served, server: Served):
    english = "This is a sentence that is already in English."
    fields = {"q": [english, "drei eins vier"], "source": "auto", "target": "en"}
    answer = guarded.ask("/translate", {**fields, "api_key": "s3cret"}).json
    assert answer["translatedText"][0] == english
    assert [each["language"] for each in answer["detectedLanguage"]] == ["en", "de"]
    refused = server.ask("/translate", {**fields, "q": "17"})  # no run translates to English
    assert (refused.status, refused.json) == (
        400,
        {"error": "English (en) is not available as a target language"},
    )


def test_markup_has_no_language(guarded: Served):
    """Only words that would be translated are looked at."""
    command = "run this command; when it has finished, you can start the server and the browser"
    documents = {
        "html": f"<p>Drei Häuser und eine Straße.</p><pre><code>{command}</code></pre>",
        "markdown": f"Drei Häuser und eine Straße.\n\n```\n{command}\n```\n",
    }
    token = {"api_key": "s3cret"}
    for name, text in documents.items():
        fields = {"q": text, "source": "auto", "target": "en", "format": name, **token}
        answer = guarded.ask("/translate", fields).json
        assert answer["detectedLanguage"]["language"] == "de"
        for sent, language in ((name, "de"), ("text", "en")):
            found = guarded.ask("/detect", {"q": text, "format": sent, **token}).json
            assert found[0]["language"] == language
    refused = guarded.ask("/detect", {"q": "eins", "format": "pdf", **token})
    assert refused.json == {"error": "Invalid request: pdf format is not supported"}


def events(answer_body: bytes) -> list[tuple[str, dict]]:
    blocks = answer_body.decode().strip().split("\n\n")
    return [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in (block.split("\n") for block in blocks)
    ]


def test_a_stream_adds_up_to_the_whole_translation(server: Served):
    text = "one. two. \n\n three four.\n"
    fields = {"q": text, "source": "auto", "target": "de", "stream": True, "alignments": True}
    answer = server.ask("/translate", fields)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    *sentences, (name, done) = events(answer.body)
    whole = server.translate(text)["translatedText"]
    assert (name, done["translatedText"]) == ("done", whole)
    assert [name for name, _ in sentences] == ["sentence"] * 3
    assert whole.startswith("".join(data["text"] for _, data in sentences))
    assert sentences[-1][1]["source"] == "three four."
    failed = {**fields, "glossary": {"two": "uno"}}
    assert events(server.ask("/translate", failed).body)[-1][0] == "error"


def test_a_stream_has_no_chunks_for_a_client_that_knows_none(server: Served):
    head = "POST /translate?q=one.+two.&source=en&target=de&stream=true HTTP/1.0\r\n"
    with socket.create_connection((server.host, server.port), timeout=60) as connection:
        connection.sendall(f"{head}Host: localhost\r\n\r\n".encode())
        lines, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in lines
    assert [name for name, _ in events(body)] == ["sentence", "sentence", "done"]


def test_a_stream_has_what_other_answers_have(server: Served, guarded: Served):
    fields = {"q": "one two", "source": "en", "target": "de", "alternatives": 2}
    (_, sentence), _ = events(server.ask("/translate", {**fields, "stream": True}).body)
    whole = server.translate("one two", alternatives=2)["alternatives"]
    assert [other["target"] for other in sentence["alternatives"]] == whole
    fields = {"q": "three one", "source": "en", "target": "de", "stream": True}
    assert guarded.ask("/translate", {**fields, "api_key": "s3cret"}).status == 200
    guarded.wait_for_log("en to de: 'three one': '3 1'")


def test_deepl_and_immersive_translate(server: Served):
    fields = {"text": ["one", "two"], "target_lang": "DE"}
    assert server.ask("/v2/translate", fields).json == {
        "translations": [
            {"detected_source_language": "EN", "text": "1", "billed_characters": 3},
            {"detected_source_language": "EN", "text": "2", "billed_characters": 3},
        ]
    }
    form = b"text=two&text=three&target_lang=DE"
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    answers = server.ask("/v2/translate", form, headers=kind).json["translations"]
    assert [answer["text"] for answer in answers] == ["2", "3"]
    assert server.ask("/v2/translate", {"text": ["one"]}).json == {
        "message": "Invalid request: missing target_lang parameter"
    }
    assert server.ask("/v2/languages?type=target").json == [
        {"language": "DE", "name": "German", "supports_formality": False}
    ]
    fields = {"text_list": ["one"], "source_lang": "auto", "target_lang": "de"}
    assert server.ask("/imme", fields).json == {
        "translations": [{"detected_source_lang": "en", "text": "1"}]
    }


def test_the_cache_and_the_queue_are_counted(server: Served):
    def number(name: str) -> float:
        text = server.ask("/metrics").body.decode()
        found = [line.split()[1] for line in text.splitlines() if line.startswith(name + " ")]
        return float(found[0])

    server.translate("nine nine eight seven six")
    before = number('seq2seq_sentences_total{source="cache"}')
    server.translate("nine nine eight seven six")
    assert number('seq2seq_sentences_total{source="cache"}') == before + 1
    assert number("seq2seq_queue_sentences") == 0
    assert number("seq2seq_output_tokens_total") > 0


# Access


def test_the_page_may_load_nothing_from_elsewhere(server: Served):
    page = server.ask("/")
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in page.headers
    for before in ("", "W/", '"other", W/'):  # as proxies write it
        again = server.ask("/", headers={"If-None-Match": before + page.headers["etag"]})
        assert (again.status, again.body) == (304, b"")


def test_other_host_names_are_refused(server: Served):
    refused = server.ask("/languages", headers={"Host": "evil.example"})
    assert (refused.status, "(--allow-host)" in refused.json["error"]) == (400, True)
    assert server.ask("/languages", headers={"Host": f"localhost:{server.port}"}).status == 200
    for host in ("[::1]:80", "proxy.example", "proxy.example:443", "[2001:db8::1]:5000"):
        assert server.ask("/languages", headers={"Host": host}).status == 200


def test_pages_of_other_sites_are_refused(server: Served, guarded: Served):
    """They could send forms, without being able to read the answer."""
    fields = {"q": "one", "source": "en", "target": "de", "api_key": "s3cret"}

    def status(served: Served, origin: str) -> int:
        answer = served.ask("/translate", form=fields, headers={"Origin": origin})
        assert (answer.status == 403) == ("(--allow-origin)" in answer.body.decode())
        return answer.status

    assert status(server, "https://evil.example") == 403
    assert status(server, "null") == 403
    assert status(server, server.url) == 200
    assert status(server, "chrome-extension://abcdef") == 200
    assert status(guarded, "https://page.example") == 200
    assert status(guarded, "https://other.example") == 403


def test_the_log_holds_no_text(server: Served):
    server.ask("/translate?q=four+four&source=en&target=de", method="POST")
    server.ask("/secret-path?q=seven")
    server.wait_for_log("other 404")
    assert not any("four" in line or "seven" in line or "secret" in line for line in server.log)


def test_a_token_is_required_beyond_this_machine(
    names_run: Path, guarded: Served, seq2seq: Command
):
    message = seq2seq("serve", names_run, "--host", "0.0.0.0", "--port", 0).error()
    assert "anyone who reaches 0.0.0.0 could use the server" in message
    fields = {"q": "one", "source": "en", "target": "de"}
    missing = guarded.ask("/translate", fields)
    assert missing.status == 400
    assert missing.json == {"error": "Please contact the server operator to get an API key"}
    wrong = guarded.ask("/translate", {**fields, "api_key": "x"})
    assert (wrong.status, wrong.json) == (403, {"error": "Invalid API key"})
    assert guarded.ask("/translate", {**fields, "api_key": "s3cret"}).status == 200
    bearer = {"Authorization": "Bearer s3cret", "Origin": "https://page.example"}
    allowed = guarded.ask("/translate", fields, headers=bearer)
    assert allowed.headers["access-control-allow-origin"] == "https://page.example"
    assert guarded.ask("/metrics").status == 400
    assert guarded.ask("/metrics", headers=bearer).status == 200
    assert guarded.ask("/v2/usage").status == 403
    assert guarded.ask("/imme?token=s3cret", {"text_list": [], "target_lang": "de"}).status == 200
    assert guarded.ask("/health").status == 200
    assert guarded.ask("/frontend/settings").json["keyRequired"]
    guarded.wait_for_log("'one': '1'")
    assert not any("s3cret" in line for line in guarded.log)


def test_bad_starts_are_refused(names_run: Path, seq2seq: Command, tmp_path: Path):
    assert "there is no run folder" in seq2seq("serve", tmp_path / "none").stderr
    nameless = tmp_path / "nameless"
    shutil.copytree(names_run, nameless)
    config = (nameless / "config.yaml").read_text()
    without = config.replace("languages:\n    src: de\n    tgt: en", "languages: null")
    (nameless / "config.yaml").write_text(without)
    assert without != config
    assert "does not say which languages it translates" in seq2seq("serve", nameless).stderr
    assert "write two language codes" in seq2seq("serve", names_run, "--langs", "german").stderr
    same = seq2seq("serve", names_run, "--langs", "tr-tr", "--port", 0)
    assert "cannot be served from tr to tr" in same.stderr
    twice = seq2seq("serve", names_run, names_run, "--port", 0)
    assert "translate the same languages: serve one of them" in twice.stderr
    for unusable in ("pässword", "one\ntwo"):
        (token := tmp_path / "token").write_text(unusable)
        refused = seq2seq("serve", names_run, "--token-file", token, "--port", 0)
        assert "the token has a line end or other characters outside of" in refused.stderr
    for origin in (
        "page.example",
        "https://page.example/path",
        "https://",
        "https://bücher.example",
    ):
        refused = seq2seq("serve", names_run, "--allow-origin", origin, "--port", 0)
        assert f"--allow-origin {origin} is not an origin" in refused.stderr
    path = seq2seq("serve", names_run, "--host", "/run/seq2seq.sock")
    assert "--host /run/seq2seq.sock is a path or a URL" in path.stderr
    both = seq2seq("serve", names_run, "--token-file", token, "--no-auth")
    assert "--token-file and --no-auth exclude each other" in both.stderr
    nowhere = seq2seq("serve", names_run, "--host", "[a..b]", "--no-auth")
    assert "cannot listen at a..b port 5000: " in nowhere.stderr
    many = seq2seq("serve", names_run, "--langs", "de-en", "--langs", "en-de")
    assert "--langs is given 2 times, for 1 runs" in many.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = seq2seq("serve", names_run, "--port", taken.getsockname()[1])
    assert "cannot listen at 127.0.0.1 port" in busy.stderr


# Load and faults


def test_many_clients_at_once_get_their_own_answers(server: Served, expected: dict[str, str]):
    with ThreadPoolExecutor(24) as pool:
        answers = pool.map(lambda text: server.translate(text)["translatedText"], SENTENCES * 3)
        assert [*answers] == [expected[text] for text in SENTENCES * 3]


def new_sentences(seed: int, count: int = 40) -> list[str]:
    """Sentences that no cache has."""
    return [names for _, names in number_pairs(count, seed=seed)]


def test_nothing_is_lost_when_processes_are_killed(server: Served, names_run: Path):
    """A kill after every 20th answer, while eight clients ask for sentences that no cache has."""
    texts = [*dict.fromkeys(new_sentences(100, 400))]
    wanted = Translator.load(names_run).translate(texts)
    killed = 0
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(server.translate, texts)
        for number, (answer, translation) in enumerate(zip(answers, wanted, strict=True)):
            assert answer["translatedText"] == translation
            if number % 20 == 0:
                for pid in server.workers()[:1]:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
    assert killed >= 10
    server.wait_for_log("a worker died")


@pytest.mark.slow
def test_killed_model_processes_and_old_models_are_replaced(names_run: Path, tmp_path: Path):
    """Without a lost request."""
    copy = tmp_path / "run"
    shutil.copytree(names_run, copy)
    trained = load_file(copy / "model.safetensors")
    changed = {name: tensor.flip(0).contiguous() for name, tensor in trained.items()}
    config = shutil.copytree(names_run, tmp_path / "other") / "config.yaml"
    same_languages = config.read_text()
    config.write_text(same_languages.replace("src: de\n    tgt: en", "src: en\n    tgt: de"))
    with serving(copy, config.parent, "--processes", 1) as served:
        (worker,) = served.workers()
        os.kill(worker, signal.SIGKILL)
        served.wait_for_log(r"a worker died \(its process has ended\)")  # before any request
        served.translate("one")
        (worker,) = served.workers()
        os.kill(served.model_processes()[0], signal.SIGKILL)
        served.translate("two")  # by the worker, which still runs
        os.kill(worker, signal.SIGKILL)
        assert served.translate("three") == {"translatedText": "3"}
        served.wait_for_log("loaded the models again")
        assert worker not in served.workers()
        served.log.clear()
        texts = new_sentences(9, 400)
        with ThreadPoolExecutor(4) as pool:
            answers = pool.map(served.translate, texts)
            save_tensors(changed, copy / "model.safetensors")
            assert all("translatedText" in answer for answer in answers)
        served.wait_for_log("loaded the models again")
        nonsense = served.translate("one two three")["translatedText"]
        assert nonsense != "1 2 3"
        (copy / "model.part").write_bytes(b"damaged")
        (copy / "model.part").replace(copy / "model.safetensors")
        served.wait_for_log("the models were not loaded again")
        config.write_text(same_languages)
        served.wait_for_log(f"not loaded again: {copy} and {config.parent} translate the same")
        for alignments in (False, True):  # which int8 needs other weights for
            answer = served.translate("one two three", alignments=alignments)
            assert answer["translatedText"] == nonsense
        assert [each["targets"] for each in served.ask("/languages").json] == [["de"], ["en"]]
        assert "seq2seq_model_loads_total 3.0" in served.ask("/metrics").body.decode()


def test_a_change_of_any_file_that_translations_depend_on_is_noticed(names_run, tmp_path):
    """A search is chosen after the last model."""
    copy = shutil.copytree(names_run, tmp_path / "run")
    (copy / "search.json").unlink(missing_ok=True)
    tokenizers = [path.name for path in copy.glob("*.model")]
    assert tokenizers
    for name in ("search.json", "config.yaml", "model.safetensors", "statistics.json", *tokenizers):
        before = RunToServe(copy).file_stamps()
        assert RunToServe(copy).file_stamps() == before
        (copy / name).write_text("other")
        assert RunToServe(copy).file_stamps() != before


def test_who_leaves_is_not_waited_for(server: Served):
    body = json.dumps(
        {"q": ["\n".join(new_sentences(s, 100)) for s in (12, 13)], "source": "en", "target": "de"}
    )
    with socket.create_connection((server.host, server.port)) as connection:
        head = f"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
    server.wait_for_log("POST /translate 499")
    assert "seq2seq_queue_sentences 0.0" in server.ask("/metrics").body.decode()


def test_connections_without_a_request_disturb_nobody(server: Served):
    idle = [socket.create_connection((server.host, server.port)) for _ in range(200)]
    for connection in idle[:100]:
        connection.sendall(b"POST /translate HTTP/1.1\r\nHost: local")
    start = time.monotonic()
    assert server.translate("one")["translatedText"] == "1"
    assert time.monotonic() - start < 60
    for connection in idle:
        connection.close()


def test_overload_is_refused(names_run: Path):
    options = ("--processes", 1, "--queue-limit", 4, "--time-limit", "inf")
    with serving(names_run, *options) as served:

        def ask(text: str, stream: bool = False) -> int:
            fields = {"q": text, "source": "en", "target": "de", "stream": stream}
            answer = served.ask("/translate", fields)
            assert answer.status == 200 or int(answer.headers["retry-after"]) >= 1
            return answer.status

        with ThreadPoolExecutor(32) as pool:
            texts = ["\n".join(new_sentences(seed, 20)) for seed in range(64)]
            for stream in (False, True):
                assert {*pool.map(ask, texts, [stream] * len(texts))} == {200, 503}
        assert ask("one two") == 200


@pytest.fixture
def heeds_sighup():
    """What starts in a test does not ignore SIGHUP, as it would under nohup."""
    former = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, former)


@pytest.mark.usefixtures("heeds_sighup")
@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGHUP, signal.SIGHUP]])
def test_a_signal_waits_for_answers(names_run: Path, signals: list[signal.Signals]):
    """A terminal that is closed sends SIGHUP to these processes, and may do so twice."""
    with serving(names_run, "--processes", 1, "--time-limit", "inf") as served:
        text = "\n".join(new_sentences(111, 120))
        processes = [served.process.pid, *served.model_processes(), *served.workers()]
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(served.translate, text)
            while "seq2seq_requests_in_progress 2.0" not in served.ask("/metrics").body.decode():
                assert not answer.done()
            for number in signals:
                for pid in processes:
                    os.kill(pid, number)
            assert len(answer.result()["translatedText"].split("\n")) == 120
        assert served.process.wait(timeout=30) == 0


def test_a_connection_is_kept_for_further_requests(server: Served):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    connection.connect()
    kept = connection.sock
    for _ in range(3):
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        assert connection.sock is kept
    connection.close()
