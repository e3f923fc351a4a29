"""The sentence to inspect, with the model's own translations or a given one."""

from seq2seq_cli.decoding.lines.segmentation import Segment
from seq2seq_cli.decoding.requests import Ids
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError
from seq2seq_cli.text.quoting import normalize_spaces


def source_and_targets(
    translator: Translator, source: str, target: str | None, tag: str | None = None
) -> tuple[Segment, list[Ids]]:
    """Return the source and the ids of its targets, without BOS and EOS.

    The targets are the `decoding.n_best` translations that the model finds, with the tokens that
    the search found, or the given target as the tokenizer splits it. `tag` is that of the source,
    by default `decoding.tag`. Raises UserError for a source
    that is empty, too long, or would be translated in several parts, and for a target that is too
    long.
    """
    tokenizers = translator.tokenizers
    source = source.encode("utf-8", "replace").decode("utf-8")  # without lone surrogates
    if target is not None:
        limit = translator.config.data.max_length
        text, control_ids = translator.source_of(TranslationInput(source, tag=tag))
        ids = tokenizers.src.to_ids(text)
        segment = Segment(ids, normalize_spaces(text), control_ids=control_ids)
        targets = [tokenizers.tgt.to_ids(target)]
        for side, ids in (("source", segment.ids), ("target", targets[0])):
            if len(ids) > limit:
                raise UserError(
                    f"the {side} has {len(ids):,} tokens, more than data.max_length ({limit:,})"
                )
    else:
        line = TranslationInput(source, tag=tag)
        ((*segments,),), _ = translator.cut([line])
        if len(segments) > 1:
            raise UserError(
                f"this line would be translated in {len(segments):,} parts: give one sentence at a "
                "time, or a target for the whole line"
            )
        segment = segments[0] if segments else Segment([], source)
        found = translator.search([line])[0] if segments else []
        targets = [tokenizers.tgt.ids_of(translation.tokens) for translation in found]
    if not segment.ids:
        raise UserError("the sentence is empty: give one that has text")
    return segment, targets
