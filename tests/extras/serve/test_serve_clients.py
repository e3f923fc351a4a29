"""Clients that exist, unchanged, and a generator of requests, against the server."""

from collections import Counter

import deepl
import pytest
import schemathesis
from deep_translator import LibreTranslator
from deep_translator.exceptions import AuthorizationException
from hypothesis import given
from libretranslatepy import LibreTranslateAPI
from served import Served


def test_libretranslatepy(server: Served):
    client = LibreTranslateAPI(server.url)
    assert client.translate("three one four", "en", "de") == "3 1 4"
    assert client.translate("one two three", "auto", "de") == "1 2 3"
    assert [language["code"] for language in client.languages()] == ["en", "de"]
    assert {found["language"] for found in client.detect("one two three")} == {"en", "de"}


def test_deep_translator(server: Served, guarded: Served):
    client = LibreTranslator(source="en", target="de", api_key="x", custom_url=f"{server.url}/")
    assert client.translate("three one four") == "3 1 4"
    assert client.translate_batch(["one", "two two"]) == ["1", "2 2"]
    right = LibreTranslator("en", "de", api_key="s3cret", custom_url=f"{guarded.url}/")
    assert right.translate("one") == "1"
    wrong = LibreTranslator("en", "de", api_key="other", custom_url=f"{guarded.url}/")
    with pytest.raises(AuthorizationException):
        wrong.translate("one")


def test_deepl(server: Served, guarded: Served):
    client = deepl.DeepLClient("any", server_url=server.url)
    results = client.translate_text(["three one four", "two"], target_lang="DE")
    assert [(r.text, r.detected_source_lang) for r in results] == [("3 1 4", "EN"), ("2", "EN")]
    html = client.translate_text(
        "<p>one <b>two</b></p>", source_lang="EN", target_lang="DE", tag_handling="html"
    )
    assert str(html) == "<p>1 <b>2</b></p>"
    xml = client.translate_text(
        "<d><p>one <x/>two <k>three</k></p><p>four</p>  <b>five</b></d>",
        **{"source_lang": "EN", "target_lang": "DE", "tag_handling": "xml"},
        **{"outline_detection": False, "splitting_tags": "q,p", "ignore_tags": ["k"]},
    )
    assert str(xml) == "<d><p>1 <x/>2 <k>three</k></p><p>4</p>  <b>5</b></d>"
    assert [language.code for language in client.get_target_languages()] == ["DE"]
    assert [language.code for language in client.get_source_languages()] == ["EN"]
    assert not client.get_usage().any_limit_reached
    with pytest.raises(deepl.DeepLException, match="ZZ is not supported"):
        client.translate_text("one", target_lang="ZZ")
    polite = client.translate_text("one", target_lang="DE", formality="prefer_more")
    assert str(polite) == "1"
    for option in ({"formality": "more"}, {"glossary": "any", "source_lang": "EN"}):
        with pytest.raises(deepl.DeepLException, match="not supported"):
            client.translate_text("one", target_lang="DE", **option)
    right = deepl.DeepLClient("s3cret", server_url=guarded.url)
    assert str(right.translate_text("one", target_lang="DE")) == "1"
    with pytest.raises(deepl.AuthorizationException):
        deepl.DeepLClient("other", server_url=guarded.url).translate_text("one", target_lang="DE")


def test_no_request_breaks_the_server(server: Served):
    """Requests generated from the OpenAPI document: no status 500, and none that it lacks."""
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.status_code_conformance,
        schemathesis.checks.content_type_conformance,
        schemathesis.checks.response_schema_conformance,
    ]
    statuses: Counter[int] = Counter()
    document = schemathesis.openapi.from_dict(server.ask("/spec").json)
    for result in document.get_all_operations():
        operation = result.ok()

        @given(case=operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            response = case.call(base_url=server.url)
            case.validate_response(response, checks=checks)
            statuses[response.status_code] += 1

        check()
    assert statuses[200] > 100
    assert statuses.keys() <= {200, 400}
    assert server.ask("/health").json == {"status": "ok"}
