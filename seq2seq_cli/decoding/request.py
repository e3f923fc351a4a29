"""What is asked of a search, sentence by sentence, and what it answers."""

from dataclasses import dataclass
from typing import NamedTuple

Ids = list[int]


@dataclass(frozen=True)
class Request:
    """A sentence to translate, as ids."""

    src: Ids  # ends in EOS
    max_length: int  # tokens of a translation, EOS not counted; at least those of the prefix
    min_length: int = 0
    prefix: tuple[int, ...] = ()  # how the translation must begin
    required: tuple[tuple[int, ...], ...] = ()  # pieces of text that must stand in it
    text: str = ""  # the sentence itself
    number: int = 0  # of the sentence in the whole input: chance depends on it


class Hypothesis(NamedTuple):
    """A translation, without BOS and EOS."""

    ids: Ids
    score: float  # that the search ranks by; 0 where it ranks nothing
