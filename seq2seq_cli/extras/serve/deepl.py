"""The interfaces of DeepL, as far as its official clients need it, and of Immersive Translate."""

import functools

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from seq2seq_cli.config.languages import language_name
from seq2seq_cli.extras.serve.documents.formats import READERS, Reader
from seq2seq_cli.extras.serve.documents.xml_document import XmlTags, read_xml
from seq2seq_cli.extras.serve.gateway import Gateway
from seq2seq_cli.extras.serve.request_fields import Fields
from seq2seq_cli.extras.serve.responses import invalid
from seq2seq_cli.extras.serve.text_translation import TranslatedText, TranslationOptions


class DeepL:
    """Language codes are in capitals."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.routes = [
            Route("/v2/translate", self.translate, methods=["POST"]),
            Route("/v2/languages", self.languages, methods=["GET", "POST"]),
            Route("/v2/usage", self.usage, methods=["GET", "POST"]),
            Route("/imme", self.immersive_translate, methods=["POST"]),
        ]

    async def translate(self, request: Request) -> Response:
        """Translate a list of texts; with tag_handling they are HTML or XML."""
        fields = await self._gateway.fields(request)
        tags = fields.text("tag_handling", "")
        if tags not in ("", "html", "xml"):
            raise invalid("tag_handling must be html or xml")
        if fields.text("formality", "") not in ("", "default", "prefer_more", "prefer_less"):
            raise invalid("formality is not supported")
        if fields.values.get("glossary_id") or fields.values.get("glossary_ids"):
            raise invalid("glossaries are not supported; /translate has the field glossary")
        options = TranslationOptions(
            _xml_reader(fields) if tags == "xml" else READERS["html" if tags else "text"]
        )
        translations = [
            {
                "detected_source_language": language.upper(),
                "text": text.text,
                "billed_characters": len(given),
            }
            for given, language, text in await self._translate(request, fields, "text", options)
        ]
        return JSONResponse({"translations": translations})

    async def immersive_translate(self, request: Request) -> Response:
        """Translate texts for the add-on Immersive Translate, whose URL has the token."""
        fields = await self._gateway.fields(request)
        translated = await self._translate(request, fields, "text_list", TranslationOptions())
        translations = [
            {"detected_source_lang": language, "text": text.text}
            for _, language, text in translated
        ]
        return JSONResponse({"translations": translations})

    async def _translate(
        self, request: Request, fields: Fields, name: str, options: TranslationOptions
    ) -> list[tuple[str, str, TranslatedText]]:
        """Return the texts of a field, the language of each, and its translation."""
        texts = fields.texts(name)
        source, target = fields.text("source_lang", "auto") or "auto", fields.text("target_lang")
        translated = await self._gateway.translate(request, texts, source, target, options)
        languages = [text.detected.language if text.detected else source for text in translated]
        return list(zip(texts, languages, translated, strict=True))

    async def languages(self, request: Request) -> Response:
        """List source or target languages."""
        kind = (await self._gateway.fields(request)).text("type", "source")
        if kind not in ("source", "target"):
            raise invalid("type must be source or target")
        pairs = self._gateway.pairs
        codes = dict.fromkeys(pair.src if kind == "source" else pair.tgt for pair in pairs)
        formality = {"supports_formality": False} if kind == "target" else {}
        return JSONResponse(
            [{"language": code.upper(), "name": language_name(code), **formality} for code in codes]
        )

    async def usage(self, request: Request) -> Response:
        """Report that there is no limit: nothing is counted."""
        await self._gateway.fields(request)
        return JSONResponse({"character_count": 0, "character_limit": 1_000_000_000_000})


def _xml_reader(fields: Fields) -> Reader:
    """Return what reads XML with the options of a request."""

    def tags(name: str) -> frozenset[str]:
        lists = fields.texts(name) if fields.values.get(name) else []
        return frozenset(tag.strip() for each in lists for tag in each.split(","))

    options = XmlTags(
        tags("splitting_tags"),
        tags("non_splitting_tags"),
        tags("ignore_tags"),
        fields.values.get("outline_detection") in (None, "") or fields.flag("outline_detection"),
    )
    return functools.partial(read_xml, tags=options)
