"""A reload with other languages: what was meant for the old models is refused."""

import asyncio
from types import SimpleNamespace

import pytest

from seq2seq_cli.config.languages import LanguagePair
from seq2seq_cli.extras.serve.documents.document import Document
from seq2seq_cli.extras.serve.gateway import Gateway
from seq2seq_cli.extras.serve.messages import SearchOptions, SentenceInput
from seq2seq_cli.extras.serve.request_fields import Limits
from seq2seq_cli.extras.serve.responses import RequestError
from seq2seq_cli.extras.serve.scheduler import SentenceToTranslate
from seq2seq_cli.extras.serve.service import TranslationService
from seq2seq_cli.extras.serve.text_translation import TranslationOptions

OLD, NEW = LanguagePair("de", "en"), LanguagePair("en", "de")
SENTENCE = SentenceToTranslate(0, SentenceInput("one"), SearchOptions())


def runs_with(languages: LanguagePair) -> list[SimpleNamespace]:
    return [SimpleNamespace(languages=languages, splitter=None)]


@pytest.mark.parametrize(("before", "is_refused"), [([], False), (runs_with(OLD), True)])
def test_what_is_queued_fails_if_the_languages_change(before, is_refused):
    async def test() -> None:
        service = TranslationService([], workers=1, queue_limit=9, cache_bytes=0)
        service.runs = before
        (result,) = service.submit([SENTENCE]).results
        async with service.running():
            assert result.done() == is_refused
        if is_refused:
            with pytest.raises(RequestError, match="other languages"):
                await result

    asyncio.run(test())


@pytest.mark.parametrize(("languages", "is_refused"), [(OLD, False), (NEW, True)])
def test_a_long_text_is_refused_if_they_change_while_it_is_read(languages, is_refused):
    service = SimpleNamespace(runs=runs_with(OLD), long_text_thread=None, submit=list)

    def read(text: str, _: object) -> Document:
        service.runs = runs_with(languages)
        return Document((text,))

    async def submit() -> list[SentenceToTranslate]:
        gateway = Gateway(service, Limits(), None, False)
        _, submission = await gateway.submit(["a" * 5_000], "de", "en", TranslationOptions(read))
        return submission

    if is_refused:
        with pytest.raises(RequestError, match="other languages"):
            asyncio.run(submit())
    else:
        assert asyncio.run(submit()) == []
