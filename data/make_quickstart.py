"""Write data/quickstart: German sentences and their English translation, from a small grammar.

The corpus is the toolkit's first example: small enough for a tiny model to learn within minutes,
and yet it cannot be translated word by word. The grammar covers

* the verb bracket: "Ich möchte ein Bier trinken." → "I want to drink a beer.", perfect tense
  ("Wir haben gestern den Film gesehen." → "We saw the film yesterday."), separable verbs
  ("Das Kind macht die Tür auf." → "The child opens the door.");
* clauses that end in their verb, after dass, ob, weil, obwohl and wenn;
* the verb in second place: "Heute trinkt meine Schwester einen Tee." → "Today my sister drinks a
  tea."; questions with and without a question word;
* articles, possessives, numerals, adjectives and nouns in three genders, two numbers and three
  cases: "mit dem kleinen Hund" → "with the small dog";
* negation with nicht and kein, "gern" → "like to", "gefallen" → "like" with the roles exchanged,
  du, ihr and Sie → "you", and a few phrases for the café and the street.

A German sentence has exactly one translation, because these choices are fixed:

* German present → English simple present, except in those phrases; perfect → simple past; möchte,
  will → want to; muss → have to; kann → can
* kein → no after haben and es gibt; elsewhere "not ... any", before what cannot be counted and
  before plurals
* a time that opens the German sentence opens the English one, any other goes to the end of its
  clause
* a sentence never opens with the pronouns sie (they) and Sie (you), so that "Sie" there means she;
  within a sentence the capital letter tells you from they, and the verb tells she from they;
  sie and ihr are only subjects

Nouns come in groups and verbs name the groups they go with, so that people read novels and drink
coffee. A sentence has 3 to 14 words in both languages. No German sentence occurs twice, train
shares no sentence of either language with valid or test, and every word form of valid and test
occurs at least ten times in train. The same seed gives the same bytes.

    python data/make_quickstart.py [folder]
"""

import argparse
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

SEED = 1
SIZES = {"train": 5_000, "valid": 200, "test": 200}
MIN_WORDS, MAX_WORDS = 3, 14
MIN_SEEN = 10  # how often train holds each word form of valid and test


class Pair(NamedTuple):
    """A sentence and its translation."""

    german: str
    english: str


# ---- Nouns, adjectives and articles ----


@dataclass(frozen=True)
class Noun:
    """A noun; without a plural it is never used in the plural. Weak nouns are left out."""

    german: str
    gender: str  # m, f or n
    english: str
    plural: str = ""


@dataclass(frozen=True)
class Group:
    """Nouns of one kind: the adjectives they take and the determiners, as often as listed."""

    nouns: tuple[Noun, ...]
    adjectives: str = ""
    determiners: str = "definite definite indefinite indefinite possessive bare numeral"
    is_mass: bool = False  # bare means the singular: "Milch", not "Hunde"


@dataclass(frozen=True)
class Phrase:
    """Words that stand together, in both languages; `about` names their noun."""

    german: str
    english: str
    is_plural: bool = False
    about: str = ""


GROUPS = {
    "hot_drink": Group(
        (Noun("Kaffee", "m", "coffee"), Noun("Tee", "m", "tea")),
        "heiß kalt gut",
        "definite indefinite bare",
        is_mass=True,
    ),
    "cold_drink": Group(
        (Noun("Bier", "n", "beer"), Noun("Saft", "m", "juice"), Noun("Limonade", "f", "lemonade")),
        "kalt gut",
        "definite indefinite bare",
        is_mass=True,
    ),
    "plain_drink": Group(
        (Noun("Wasser", "n", "water"), Noun("Milch", "f", "milk")),
        "kalt gut",
        "definite bare",
        is_mass=True,
    ),
    "food": Group(
        (Noun("Brot", "n", "bread"), Noun("Fleisch", "n", "meat")),
        "frisch gut",
        "definite bare",
        is_mass=True,
    ),
    "snack": Group(
        (
            Noun("Apfel", "m", "apple", "Äpfel"),
            Noun("Ei", "n", "egg", "Eier"),
            Noun("Banane", "f", "banana", "Bananen"),
            Noun("Orange", "f", "orange", "Orangen"),
            Noun("Kuchen", "m", "cake", "Kuchen"),
        ),
        "frisch gut groß klein",
        "definite definite indefinite indefinite bare numeral",
    ),
    "text": Group(
        (
            Noun("Brief", "m", "letter", "Briefe"),
            Noun("Roman", "m", "novel", "Romane"),
            Noun("Geschichte", "f", "story", "Geschichten"),
            Noun("Gedicht", "n", "poem", "Gedichte"),
        ),
        "lang kurz schön",
    ),
    "print": Group(
        (Noun("Buch", "n", "book", "Bücher"), Noun("Zeitung", "f", "newspaper", "Zeitungen")),
        "neu alt interessant",
    ),
    "view": Group(
        (Noun("Film", "m", "film", "Filme"), Noun("Bild", "n", "picture", "Bilder")),
        "neu alt schön interessant",
        "definite definite indefinite indefinite bare numeral",
    ),
    "opening": Group(
        (
            Noun("Tür", "f", "door", "Türen"),
            Noun("Fenster", "n", "window", "Fenster"),
            Noun("Koffer", "m", "suitcase", "Koffer"),
        ),
        "groß klein alt",
        "definite definite possessive",
    ),
    "clothes": Group(
        (
            Noun("Mantel", "m", "coat", "Mäntel"),
            Noun("Jacke", "f", "jacket", "Jacken"),
            Noun("Hemd", "n", "shirt", "Hemden"),
        ),
        "rot blau neu alt",
        "definite definite indefinite possessive",
    ),
    "thing": Group(
        (
            Noun("Auto", "n", "car", "Autos"),
            Noun("Fahrrad", "n", "bicycle", "Fahrräder"),
            Noun("Schlüssel", "m", "key", "Schlüssel"),
            Noun("Ball", "m", "ball", "Bälle"),
        ),
        "neu alt klein rot blau",
    ),
    "animal": Group(
        (
            Noun("Hund", "m", "dog", "Hunde"),
            Noun("Katze", "f", "cat", "Katzen"),
            Noun("Pferd", "n", "horse", "Pferde"),
        ),
        "klein groß alt",
        "definite definite indefinite indefinite possessive numeral",
    ),
    "stranger": Group(  # no possessives: "meine Frau" is a wife
        (
            Noun("Mann", "m", "man", "Männer"),
            Noun("Frau", "f", "woman", "Frauen"),
            Noun("Mädchen", "n", "girl", "Mädchen"),
        ),
        "jung nett",
        "definite definite indefinite",
    ),
    "acquaintance": Group(
        (
            Noun("Kind", "n", "child", "Kinder"),
            Noun("Freund", "m", "friend", "Freunde"),
            Noun("Lehrer", "m", "teacher", "Lehrer"),
            Noun("Lehrerin", "f", "teacher", "Lehrerinnen"),
            Noun("Arzt", "m", "doctor", "Ärzte"),
        ),
        "nett",
        "definite definite indefinite possessive possessive",
    ),
    "relative": Group(
        (
            Noun("Vater", "m", "father"),
            Noun("Mutter", "f", "mother"),
            Noun("Bruder", "m", "brother", "Brüder"),
            Noun("Schwester", "f", "sister", "Schwestern"),
            Noun("Tochter", "f", "daughter", "Töchter"),
        ),
        "nett",
        "possessive",
    ),
    "name": Group(
        (Noun("Anna", "f", "Anna"), Noun("Paul", "m", "Paul"), Noun("Lisa", "f", "Lisa")),
        determiners="proper",
    ),
    "city": Group(
        (
            Noun("Berlin", "n", "Berlin"),
            Noun("Wien", "n", "Vienna"),
            Noun("Köln", "n", "Cologne"),
            Noun("München", "n", "Munich"),
        ),
        determiners="proper",
    ),
    "outdoors": Group(
        (Noun("Garten", "m", "garden"), Noun("Park", "m", "park")),
        "klein groß schön",
        "definite definite definite indefinite",
    ),
    "workplace": Group(
        (
            Noun("Küche", "f", "kitchen"),
            Noun("Schule", "f", "school"),
            Noun("Hotel", "n", "hotel"),
            Noun("Museum", "n", "museum"),
        ),
        "klein groß neu alt",
        "definite definite definite indefinite",
    ),
    "home": Group(
        (Noun("Haus", "n", "house"), Noun("Stadt", "f", "city")),
        "klein groß schön alt",
        "definite indefinite indefinite",
    ),
    "vehicle": Group(
        (Noun("Bus", "m", "bus"), Noun("Zug", "m", "train"), Noun("Auto", "n", "car")),
        determiners="definite",
    ),
    "means": Group(
        (Noun("Zeit", "f", "time"), Noun("Geld", "n", "money")), determiners="bare", is_mass=True
    ),
}
PERSONS = "stranger acquaintance relative name"
DRINKS = "hot_drink cold_drink plain_drink"
ORDERS = "hot_drink cold_drink snack"

ENGLISH_ADJECTIVES = {
    "alt": "old", "blau": "blue", "frisch": "fresh", "groß": "big", "gut": "good", "heiß": "hot",
    "interessant": "interesting", "jung": "young", "kalt": "cold", "klein": "small",
    "kurz": "short", "lang": "long", "müde": "tired", "nett": "nice",
    "neu": "new", "rot": "red", "schön": "beautiful", "krank": "sick",
    "hungrig": "hungry", "glücklich": "happy",
}  # fmt: skip
STATES = "müde krank hungrig glücklich"  # of persons
ENGLISH_PLURALS = {"man": "men", "woman": "women", "child": "children"}
POSSESSIVES = {"mein": "my", "dein": "your", "unser": "our"}
NUMERALS = {"zwei": "two", "drei": "three"}

# Endings by gender (p for the plural of all of them), for nominative, accusative and dative.
CASES = ("nominative", "accusative", "dative")
DEFINITE = {
    "m": ("der", "den", "dem"),
    "f": ("die", "die", "der"),
    "n": ("das", "das", "dem"),
    "p": ("die", "die", "den"),
}
EIN = {"m": ("", "en", "em"), "f": ("e", "e", "er"), "n": ("", "", "em"), "p": ("e", "e", "en")}
AFTER_DEFINITE = {
    "m": ("e", "en", "en"),
    "f": ("e", "e", "en"),
    "n": ("e", "e", "en"),
    "p": ("en", "en", "en"),
}
AFTER_EIN = {
    "m": ("er", "en", "en"),
    "f": ("e", "e", "en"),
    "n": ("es", "es", "en"),
    "p": ("en", "en", "en"),
}
ALONE = {
    "m": ("er", "en", "em"),
    "f": ("e", "e", "er"),
    "n": ("es", "es", "em"),
    "p": ("e", "e", "en"),
}


def english_plural(noun: str) -> str:
    """men, stories, buses, dogs."""
    if noun in ENGLISH_PLURALS:
        return ENGLISH_PLURALS[noun]
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + ("es" if noun.endswith(("s", "ch", "sh", "x")) else "s")


def german_noun(noun: Noun, case: str, is_plural: bool) -> str:
    """The noun in its case; only the dative plural has an ending of its own."""
    if not is_plural:
        return noun.german
    ends_already = case != "dative" or noun.plural.endswith(("n", "s"))
    return noun.plural + ("" if ends_already else "n")


def inflect(adjective: str, ending: str) -> str:
    """schön + e → schöne, müde + e → müde."""
    return adjective.removesuffix("e") + ending


def article(following: str) -> str:
    """The English a or an; right for every word of this lexicon."""
    return "an" if following[0] in "aeiou" else "a"


def draw_number(rng: random.Random, noun: Noun, group: Group, determiner: str) -> bool:
    """Whether to use the plural with this determiner."""
    if determiner == "numeral" or (determiner in ("bare", "not") and not group.is_mass):
        assert noun.plural, f"{determiner} needs a plural of {noun.german}"
        return True
    if not noun.plural or determiner == "indefinite":
        return False
    return rng.random() < 0.2


class Determiner(NamedTuple):
    """An article or what stands in its place, and the endings it leaves to the adjective."""

    german: str
    english: str
    endings: dict[str, tuple[str, str, str]]


def choose_determiner(rng: random.Random, kind: str, gender: str, case: str) -> Determiner:
    """The determiner in its form; the English "a" still has to become "an" where needed."""
    index = CASES.index(case)
    ending = EIN[gender][index]
    if kind == "definite":
        return Determiner(DEFINITE[gender][index], "the", AFTER_DEFINITE)
    if kind == "indefinite":
        return Determiner("ein" + ending, "a", AFTER_EIN)
    if kind == "possessive":
        german = rng.choice(list(POSSESSIVES))
        return Determiner(german + ending, POSSESSIVES[german], AFTER_EIN)
    if kind == "numeral":
        german = rng.choice(list(NUMERALS))
        return Determiner(german, NUMERALS[german], ALONE)
    if kind == "no":
        return Determiner("kein" + ending, "no", AFTER_EIN)
    if kind == "not":
        return Determiner("kein" + ending, "any", AFTER_EIN)
    assert kind in ("bare", "proper"), kind
    return Determiner("", "", ALONE)


def noun_phrase(
    rng: random.Random,
    group_names: str,
    case: str,
    kinds: str = "",
    avoid: str = "",
    adjective_share: float = 0.25,
) -> Phrase:
    """A noun phrase from one of the groups.

    `kinds` restricts its determiner to some that the group allows, or to "no" or "not" for kein;
    `avoid` is a noun, in English, that must not be repeated.
    """
    groups = [GROUPS[name] for name in group_names.split()]
    choices = [(group, noun) for group in groups for noun in group.nouns if noun.english != avoid]
    group, noun = rng.choice(choices)
    allowed = [kind for kind in group.determiners.split() if not kinds or kind in kinds.split()]
    kind = rng.choice(allowed) if allowed else kinds.split()[0]
    is_plural = draw_number(rng, noun, group, kind)
    gender = "p" if is_plural else noun.gender
    determiner = choose_determiner(rng, kind, gender, case)
    adjective = ""
    if group.adjectives and rng.random() < adjective_share:
        adjective = rng.choice(group.adjectives.split())
    german_adjective = adjective and inflect(
        adjective, determiner.endings[gender][CASES.index(case)]
    )
    english = join(
        ENGLISH_ADJECTIVES.get(adjective, ""),
        english_plural(noun.english) if is_plural else noun.english,
    )
    english_determiner = article(english) if determiner.english == "a" else determiner.english
    return Phrase(
        join(determiner.german, german_adjective, german_noun(noun, case, is_plural)),
        join(english_determiner, english),
        is_plural,
        noun.english,
    )


def join(*parts: str) -> str:
    """The parts that are not empty, with spaces between them."""
    return " ".join(part for part in parts if part)


# ---- Verbs ----


@dataclass(frozen=True)
class Link:
    """A preposition, the case it governs and the nouns it leads to."""

    german: str
    case: str
    english: str
    groups: str


@dataclass(frozen=True)
class Verb:
    """A verb and what goes with it.

    `forms` are the present of ich, du, er, wir, ihr; sie and the infinitive equal the form of wir.
    Without a participle a verb is only used in the present tense and without modals.
    """

    forms: str
    participle: str
    english: str
    past: str = ""
    objects: str = ""  # groups of the accusative object
    recipients: str = ""  # groups of the dative object
    kinds: str = ""  # determiners of the accusative object; any if empty
    links: tuple[Link, ...] = ()  # prepositional phrases, one of which is used
    needs_link: bool = False
    prefix: str = ""
    particle: str = ""  # English; follows the object: "picks him up"
    perfect_with_sein: bool = False

    @property
    def infinitive(self) -> str:
        """trinken, aufmachen."""
        return self.prefix + self.forms.split()[3]


IN_PLACE = Link("in", "dative", "in", "outdoors workplace")
WITH_SOMEONE = Link("mit", "dative", "with", PERSONS)
VERBS = (
    Verb("trinke trinkst trinkt trinken trinkt", "getrunken", "drink", "drank", DRINKS),
    Verb("esse isst isst essen esst", "gegessen", "eat", "ate", "food snack"),
    Verb("lese liest liest lesen lest", "gelesen", "read", "read", "text print"),
    Verb("schreibe schreibst schreibt schreiben schreibt", "geschrieben", "write", "wrote", "text"),
    Verb("sehe siehst sieht sehen seht", "gesehen", "see", "saw", f"view animal {PERSONS}"),
    Verb(
        "kaufe kaufst kauft kaufen kauft", "gekauft", "buy", "bought",
        f"food snack print clothes thing {DRINKS}",
    ),
    Verb(
        "suche suchst sucht suchen sucht", "gesucht", "look for", "looked for",
        f"clothes thing animal {PERSONS}",
    ),
    Verb("besuche besuchst besucht besuchen besucht", "besucht", "visit", "visited", PERSONS),
    Verb("brauche brauchst braucht brauchen braucht", "", "need", "", "clothes thing means"),
    Verb("kenne kennst kennt kennen kennt", "", "know", "", PERSONS),
    Verb("liebe liebst liebt lieben liebt", "", "love", "", f"animal {PERSONS}"),
    Verb("habe hast hat haben habt", "", "have", "", "animal thing clothes means snack",
         kinds="indefinite bare numeral"),
    Verb("möchte möchtest möchte möchten möchtet", "", "want", "", ORDERS,
         kinds="indefinite indefinite bare numeral"),
    Verb("helfe hilfst hilft helfen helft", "geholfen", "help", "helped", recipients=PERSONS),
    Verb("danke dankst dankt danken dankt", "gedankt", "thank", "thanked", recipients=PERSONS),
    Verb("gebe gibst gibt geben gebt", "gegeben", "give", "gave", "snack print thing", PERSONS),
    Verb("bringe bringst bringt bringen bringt", "gebracht", "bring", "brought",
         "snack hot_drink cold_drink", PERSONS),
    Verb("mache machst macht machen macht", "aufgemacht", "open", "opened", "opening",
         prefix="auf"),
    Verb("mache machst macht machen macht", "zugemacht", "close", "closed", "opening",
         prefix="zu"),
    Verb("rufe rufst ruft rufen ruft", "angerufen", "call", "called", PERSONS, prefix="an"),
    Verb("lade lädst lädt laden ladet", "eingeladen", "invite", "invited", PERSONS, prefix="ein"),
    Verb("hole holst holt holen holt", "abgeholt", "pick", "picked", PERSONS, prefix="ab",
         particle="up"),
    Verb("ziehe ziehst zieht ziehen zieht", "angezogen", "put", "put", "clothes",
         prefix="an", particle="on"),
    Verb("stehe stehst steht stehen steht", "aufgestanden", "get up", "got up", prefix="auf",
         perfect_with_sein=True),
    Verb("schlafe schläfst schläft schlafen schlaft", "geschlafen", "sleep", "slept",
         links=(Link("in", "dative", "in", "outdoors"),)),
    Verb("arbeite arbeitest arbeitet arbeiten arbeitet", "gearbeitet", "work", "worked",
         links=(IN_PLACE,)),
    Verb("lache lachst lacht lachen lacht", "gelacht", "laugh", "laughed"),
    Verb("tanze tanzt tanzt tanzen tanzt", "getanzt", "dance", "danced",
         links=(WITH_SOMEONE, IN_PLACE)),
    Verb("spiele spielst spielt spielen spielt", "gespielt", "play", "played",
         links=(Link("mit", "dative", "with", f"animal {PERSONS}"), IN_PLACE)),
    Verb("spreche sprichst spricht sprechen sprecht", "gesprochen", "speak", "spoke",
         links=(WITH_SOMEONE,), needs_link=True),
    Verb("warte wartest wartet warten wartet", "gewartet", "wait", "waited",
         links=(Link("auf", "accusative", "for", f"vehicle {PERSONS}"), IN_PLACE)),
    Verb("wohne wohnst wohnt wohnen wohnt", "gewohnt", "live", "lived",
         links=(Link("in", "dative", "in", "home city"),), needs_link=True),
    Verb("gehe gehst geht gehen geht", "gegangen", "go", "went", perfect_with_sein=True,
         links=(Link("in", "accusative", "to", "outdoors workplace"),), needs_link=True),
    Verb("komme kommst kommt kommen kommt", "gekommen", "come", "came", perfect_with_sein=True),
    Verb("fahre fährst fährt fahren fahrt", "gefahren", "travel", "traveled",
         perfect_with_sein=True, links=(Link("nach", "dative", "to", "city"),), needs_link=True),
)  # fmt: skip
SEIN = Verb("bin bist ist sind seid", "", "be")
AUXILIARIES = {"haben": "habe hast hat haben habt", "sein": SEIN.forms}
SEIN_PAST = "war warst war waren wart"


@dataclass(frozen=True)
class Modal:
    """A modal verb, and the English words that open the verb phrase instead."""

    forms: str
    english: str


MODALS = {
    "möchten": Modal("möchte möchtest möchte möchten möchtet", "want to"),
    "wollen": Modal("will willst will wollen wollt", "want to"),
    "müssen": Modal("muss musst muss müssen müsst", "have to"),
    "können": Modal("kann kannst kann können könnt", "can"),
}
# English names of the verbs that go with gern.
LIKED = "drink eat read write see sleep work laugh dance play speak travel"


# ---- Subjects, times and the rest of a clause ----


@dataclass(frozen=True)
class Subject:
    """Who does it; `person` counts ich, du, er, wir, ihr, sie from 0."""

    german: str
    english: str
    person: int
    may_open: bool = True  # whether a sentence may begin with it
    about: str = ""


PRONOUN_SUBJECTS = (
    Subject("ich", "I", 0),
    Subject("du", "you", 1),
    Subject("er", "he", 2),
    Subject("sie", "she", 2),
    Subject("wir", "we", 3),
    Subject("ihr", "you", 4),
    Subject("Sie", "you", 5, may_open=False),
    Subject("sie", "they", 5, may_open=False),
)
YOU_POLITE = PRONOUN_SUBJECTS[6]
WHO = Subject("wer", "who", 2)
# Accusative, dative, English, and the subjects they would turn into reflexives.
PRONOUN_OBJECTS = (
    ("mich", "mir", "me", "I we"),
    ("dich", "dir", "you", "you"),
    ("ihn", "ihm", "him", ""),
    ("uns", "uns", "us", "I we"),
)
TIMES = {
    "present": {
        "heute": "today",
        "jetzt": "now",
        "am Abend": "in the evening",
        "am Morgen": "in the morning",
        "am Sonntag": "on Sunday",
    },
    "perfect": {
        "gestern": "yesterday",
        "heute": "today",
        "am Sonntag": "on Sunday",
        "letzte Woche": "last week",
    },
    "modal": {
        "heute": "today",
        "jetzt": "now",
        "morgen": "tomorrow",
        "am Abend": "in the evening",
    },
}


@dataclass(frozen=True)
class Clause:
    """Everything a clause says, before it has an order of words.

    `mode` is present, past (of sein only), perfect, gern or one of MODALS. The `complement` is
    what nicht precedes: a prepositional phrase or a predicate.
    """

    subject: Subject
    verb: Verb
    mode: str = "present"
    pronoun: Phrase | None = None
    objects: tuple[Phrase, ...] = ()
    complement: Phrase | None = None
    time: Phrase | None = None
    nicht: bool = False
    english_not: bool = False  # also true of kein, unless it is "no" in English


def draw_subject(rng: random.Random, opens: bool, questioned: bool = False) -> Subject:
    """A pronoun, a person or a name; nobody asks what they do themselves."""
    if rng.random() < 0.5:
        fitting = [
            subject
            for subject in PRONOUN_SUBJECTS
            if (subject.may_open or not opens) and not (questioned and subject.person == 0)
        ]
        # They and the polite you never open a sentence; elsewhere they make up for it.
        return rng.choices(fitting, [1 if subject.may_open else 2 for subject in fitting])[0]
    kinds = "" if rng.random() < 0.25 else "definite possessive proper"
    phrase = noun_phrase(rng, PERSONS, "nominative", kinds, adjective_share=0.1)
    return Subject(phrase.german, phrase.english, 5 if phrase.is_plural else 2, about=phrase.about)


def draw_mode(rng: random.Random, verb: Verb) -> str:
    """How the clause is built around the verb; stative verbs only have the present."""
    if not verb.participle:
        return "present"
    modes = {"present": 40, "perfect": 28, "gern": 6 if verb.english in LIKED.split() else 0}
    modes |= dict.fromkeys(MODALS, 7)
    return rng.choices(list(modes), list(modes.values()))[0]


def draw_pronoun(rng: random.Random, subject: Subject, is_dative: bool) -> Phrase:
    """An object pronoun that does not refer back to the subject."""
    fitting = [row for row in PRONOUN_OBJECTS if subject.english not in row[3].split()]
    accusative, dative, english, _ = rng.choice(fitting)
    return Phrase(dative if is_dative else accusative, english)


def draw_object(
    rng: random.Random, verb: Verb, mode: str, negation: str, subject: Subject
) -> Phrase:
    """The accusative object, with the determiner that the negation asks for."""
    groups = verb.objects.split()
    kinds = verb.kinds
    if mode == "gern":
        groups = [name for name in groups if "bare" in GROUPS[name].determiners.split()]
        kinds = "bare"
    elif negation == "kein":
        groups = [name for name in groups if name not in ("relative", "name")]
        kinds = "no" if verb.english == "have" else "not"
    elif negation == "nicht":
        kinds = "definite possessive proper"
    return noun_phrase(rng, rng.choice(groups), "accusative", kinds, avoid=subject.about)


def draw_complement(rng: random.Random, verb: Verb, subject: Subject) -> Phrase | None:
    """A prepositional phrase; by train to Berlin has its own order in each language."""
    if not verb.links or (not verb.needs_link and rng.random() < 0.3):
        return None
    link = rng.choice(verb.links)
    phrase = noun_phrase(rng, rng.choice(link.groups.split()), link.case, avoid=subject.about)
    german, english = f"{link.german} {phrase.german}", f"{link.english} {phrase.english}"
    for written_out, contracted in (("in dem ", "im "), ("in das ", "ins ")):
        if german.startswith(written_out):
            german = contracted + german.removeprefix(written_out)
    if verb.english == "travel" and rng.random() < 0.7:
        vehicle = noun_phrase(rng, "vehicle", "dative")
        return Phrase(f"mit {vehicle.german} {german}", f"{english} by {vehicle.about}")
    return Phrase(german, english)


def draw_time(rng: random.Random, mode: str) -> Phrase:
    """When it happens, as the mode allows."""
    german, english = rng.choice(list(TIMES["modal" if mode in MODALS else mode].items()))
    return Phrase(german, english)


def draw_negation(rng: random.Random, verb: Verb, mode: str) -> str:
    """nicht, kein or nothing."""
    if rng.random() > 0.18:
        return ""
    has_kein = verb.objects not in ("", PERSONS) and mode != "gern"
    return "kein" if has_kein and (verb.kinds or rng.random() < 0.6) else "nicht"


def draw_clause(
    rng: random.Random,
    subject: Subject,
    verb: Verb | None = None,
    missing: str = "",
    may_negate: bool = True,
) -> Clause:
    """A clause around a verb; `missing` is the part a question asks for.

    That is object, recipient, complement or time.
    """
    verb = verb or rng.choice(VERBS)
    mode = draw_mode(rng, verb)
    while missing and mode == "gern":
        mode = draw_mode(rng, verb)
    negation = draw_negation(rng, verb, mode) if may_negate else ""
    pronoun: Phrase | None = None
    objects: list[Phrase] = []
    role = "recipient" if verb.recipients else "object"
    takes_person = "stranger" in (verb.recipients or verb.objects) and missing != role
    if takes_person and negation != "kein" and mode != "gern" and rng.random() < 0.4:
        pronoun = draw_pronoun(rng, subject, bool(verb.recipients))
    if verb.recipients and not pronoun and missing != "recipient":
        kinds = "definite possessive proper" if negation else ""
        objects.append(noun_phrase(rng, verb.recipients, "dative", kinds, avoid=subject.about))
    if verb.objects and missing != "object" and not (pronoun and not verb.recipients):
        objects.append(draw_object(rng, verb, mode, negation, subject))
    complement = None if missing == "complement" else draw_complement(rng, verb, subject)
    has_time = mode != "gern" and verb.participle and missing != "time" and rng.random() < 0.4
    if (negation == "nicht" and objects) or verb.english == "live":
        # Where a time stands beside a negated object is a matter of emphasis, and people do not
        # live somewhere on Sunday.
        has_time = False
    return Clause(
        subject,
        verb,
        mode,
        pronoun,
        tuple(objects),
        complement,
        draw_time(rng, mode) if has_time else None,
        nicht=negation == "nicht",
        english_not=bool(negation) and not (negation == "kein" and verb.english == "have"),
    )


def draw_state(rng: random.Random, subject: Subject, may_negate: bool = True) -> Clause:
    """A person is or was in some state."""
    state = rng.choice(STATES.split())
    nicht = may_negate and rng.random() < 0.25
    mode = rng.choice(["present", "present", "past"])
    time: Phrase | None = None
    if rng.random() < 0.3:
        time = Phrase("gestern", "yesterday") if mode == "past" else Phrase("heute", "today")
    complement = Phrase(state, ENGLISH_ADJECTIVES[state])
    return Clause(
        subject, SEIN, mode, complement=complement, time=time, nicht=nicht, english_not=nicht
    )


def draw_quality(rng: random.Random) -> Clause:
    """A thing, an animal or a drink is big, old, cold."""
    groups = f"{DRINKS} food snack text print view opening clothes thing animal workplace home"
    name = rng.choice(groups.split())
    phrase = noun_phrase(rng, name, "nominative", "definite possessive", adjective_share=0)
    quality = rng.choice(GROUPS[name].adjectives.split())
    subject = Subject(phrase.german, phrase.english, 5 if phrase.is_plural else 2)
    nicht = rng.random() < 0.25
    mode = rng.choice(["present", "present", "past"])
    complement = Phrase(quality, ENGLISH_ADJECTIVES[quality])
    return Clause(subject, SEIN, mode, complement=complement, nicht=nicht, english_not=nicht)


# ---- German order ----


def form(forms: str, person: int) -> str:
    """The form of a person; sie takes that of wir."""
    return forms.split()[3 if person == 5 else person]


def german_finite(clause: Clause) -> str:
    """The one verb form that agrees with the subject."""
    forms = clause.verb.forms
    if clause.mode == "past":
        forms = SEIN_PAST
    elif clause.mode == "perfect":
        forms = AUXILIARIES["sein" if clause.verb.perfect_with_sein else "haben"]
    elif clause.mode in MODALS:
        forms = MODALS[clause.mode].forms
    return form(forms, clause.subject.person)


def german_closing(clause: Clause) -> str:
    """What closes the verb bracket of a main clause: a participle, an infinitive or a prefix."""
    if clause.mode == "perfect":
        return clause.verb.participle
    return clause.verb.infinitive if clause.mode in MODALS else clause.verb.prefix


def german_middle(clause: Clause, with_time: bool = True) -> str:
    """What stands between the subject and the closing of the bracket."""
    time = clause.time.german if clause.time and with_time else ""
    nicht = "nicht" if clause.nicht else ""
    objects = [phrase.german for phrase in clause.objects]
    pronoun = clause.pronoun.german if clause.pronoun else ""
    complement = clause.complement.german if clause.complement else ""
    if clause.mode == "gern":
        return join(pronoun, time, nicht, "gern", *objects, complement)
    return join(pronoun, time, *objects, nicht, complement)


def german_main(clause: Clause, time_first: bool = False) -> str:
    """A statement: the finite verb is the second part."""
    if time_first and clause.time:
        rest = german_inverted(clause, with_time=False)
        return join(clause.time.german, rest)
    finite, closing = german_finite(clause), german_closing(clause)
    return join(clause.subject.german, finite, german_middle(clause), closing)


def german_inverted(clause: Clause, with_time: bool = True) -> str:
    """The finite verb before the subject: questions, or after something that opens the clause."""
    middle = german_middle(clause, with_time)
    return join(german_finite(clause), clause.subject.german, middle, german_closing(clause))


def german_final(clause: Clause) -> str:
    """A subordinate clause, without its conjunction: the finite verb closes it."""
    closing, finite = german_closing(clause), german_finite(clause)
    is_separable = closing and closing == clause.verb.prefix
    end = closing + finite if is_separable else join(closing, finite)
    return join(clause.subject.german, german_middle(clause), end)


# ---- English order ----


def third_person(words: str) -> str:
    """The form of he: look for → looks for, go → goes, have to → has to."""
    verb, _, rest = words.partition(" ")
    if verb == "have":
        verb = "has"
    else:
        verb += "es" if verb.endswith(("s", "sh", "ch", "x", "o")) else "s"
    return join(verb, rest)


def english_predicate(clause: Clause) -> tuple[str, str, str]:
    """The auxiliary and the infinitive of questions and negations, and the form without them."""
    person, mode, verb = clause.subject.person, clause.mode, clause.verb.english
    if clause.verb is SEIN:
        present = {0: "am", 2: "is"}.get(person, "are")
        past = "was" if person in (0, 2) else "were"
        form_of_be = past if mode == "past" else present
        return form_of_be, "", form_of_be
    if mode == "perfect":
        return "did", verb, clause.verb.past
    if mode == "können":
        return "can", verb, f"can {verb}"
    opening = "like to" if mode == "gern" else MODALS[mode].english if mode in MODALS else ""
    words = join(opening, verb)
    return ("does", words, third_person(words)) if person == 2 else ("do", words, words)


def english_rest(clause: Clause, with_time: bool = True) -> str:
    """What follows the verb."""
    pronoun = clause.pronoun.english if clause.pronoun else ""
    objects = [phrase.english for phrase in clause.objects]
    complement = clause.complement.english if clause.complement else ""
    time = clause.time.english if clause.time and with_time else ""
    return join(pronoun, *objects, clause.verb.particle, complement, time)


def english_main(clause: Clause, time_first: bool = False) -> str:
    """A statement or a subordinate clause: English does not tell them apart."""
    auxiliary, infinitive, finite = english_predicate(clause)
    if clause.english_not:
        negated = "cannot" if auxiliary == "can" else f"{auxiliary} not"
        finite = join(negated, infinitive)
    time = clause.time.english if clause.time and time_first else ""
    return join(time, clause.subject.english, finite, english_rest(clause, not time_first))


def english_question(clause: Clause) -> str:
    """The auxiliary before the subject."""
    auxiliary, infinitive, _ = english_predicate(clause)
    return join(auxiliary, clause.subject.english, infinitive, english_rest(clause))


# ---- Sentences ----


def finish(german: str, english: str, end: str = ".") -> Pair:
    """Capital letters and the final mark."""
    return Pair(german[0].upper() + german[1:] + end, english[0].upper() + english[1:] + end)


def statement(rng: random.Random) -> Pair:
    """Heute trinkt meine Schwester einen Tee."""
    time_first = rng.random() < 0.4
    clause = draw_clause(rng, draw_subject(rng, opens=not time_first))
    if time_first and not clause.time:
        clause = draw_clause(rng, draw_subject(rng, opens=True))
    time_first = time_first and clause.time is not None
    return finish(german_main(clause, time_first), english_main(clause, time_first))


def draw_question(rng: random.Random) -> Clause:
    """A clause to ask, without negation."""
    subject = draw_subject(rng, opens=False, questioned=True)
    if rng.random() < 0.12:
        return draw_state(rng, subject, may_negate=False)
    return draw_clause(rng, subject, may_negate=False)


def question(rng: random.Random) -> Pair:
    """Trinkt dein Bruder Bier?"""
    clause = draw_question(rng)
    return finish(german_inverted(clause), english_question(clause), "?")


def who_question(rng: random.Random) -> Pair:
    """Wer hat das Brot gekauft?"""
    clause = draw_clause(rng, WHO, may_negate=False)
    return finish(german_main(clause), english_main(clause), "?")


def word_question(rng: random.Random) -> Pair:
    """Was liest du? Wen besucht Anna? Wem hilft er? Wo wohnt ihr? Warum lacht das Kind?"""
    subject = draw_subject(rng, opens=False, questioned=True)
    missing = rng.choice(["object", "object", "recipient", "complement", "time"])
    fitting = [verb for verb in VERBS if is_askable(verb, missing)]
    verb = rng.choice(fitting)
    clause = draw_clause(rng, subject, verb, missing, may_negate=False)
    german, english = "wo", "where"
    if missing == "object":
        asks_person = "stranger" in verb.objects and (verb.objects == PERSONS or rng.random() < 0.5)
        german, english = ("wen", "who") if asks_person else ("was", "what")
    elif missing == "recipient":
        german, english = "wem", "who"
    elif missing == "time":
        german, english = rng.choice([("wann", "when"), ("warum", "why")])
    elif verb.english in ("go", "travel"):
        german = "wohin"
    return finish(
        join(german, german_inverted(clause)), join(english, english_question(clause)), "?"
    )


def is_askable(verb: Verb, missing: str) -> bool:
    """Whether a question can ask for this part of the verb."""
    if missing == "object":
        return bool(verb.objects)
    if missing == "recipient":
        return bool(verb.recipients) and not verb.objects
    if missing == "complement":
        return any(link.german in ("in", "nach") for link in verb.links)
    return bool(verb.participle)


THINK = Verb("glaube glaubst glaubt glauben glaubt", "", "think")
KNOW = Verb("weiß weißt weiß wissen wisst", "", "know")
HOPE = Verb("hoffe hoffst hofft hoffen hofft", "", "hope")
SAY = Verb("sage sagst sagt sagen sagt", "", "say")
ASK = Verb("frage fragst fragt fragen fragt", "", "ask")


def draw_inner(rng: random.Random) -> Clause:
    """A clause to put after a conjunction."""
    subject = draw_subject(rng, opens=False)
    return draw_state(rng, subject) if rng.random() < 0.15 else draw_clause(rng, subject)


def reported(rng: random.Random) -> Pair:
    """Ich glaube, dass der Lehrer das Buch liest. Weißt du, ob er kommt?"""
    inner = draw_inner(rng)
    german, english = german_final(inner), english_main(inner)
    if rng.random() < 0.15:
        outer = Clause(draw_subject(rng, opens=False, questioned=True), KNOW)
        return finish(
            f"{german_inverted(outer)}, ob {german}",
            f"{english_question(outer)} whether {english}",
            "?",
        )
    subject = draw_subject(rng, opens=True)
    if rng.random() < 0.3:
        is_asked = rng.random() < 0.5
        verb, conjunctions = (ASK if is_asked else KNOW), ("ob", "whether")
        outer = Clause(subject, verb, nicht=not is_asked, english_not=not is_asked)
    else:
        outer = Clause(subject, rng.choice([THINK, KNOW, HOPE, SAY]))
        conjunctions = ("dass", "that")
    return finish(
        f"{german_main(outer)}, {conjunctions[0]} {german}",
        f"{english_main(outer)} {conjunctions[1]} {english}",
    )


CONJUNCTIONS = {"weil": "because", "obwohl": "although", "wenn": "when"}
HAVE = next(verb for verb in VERBS if verb.english == "have")
MEANS = {"Zeit": "time", "Geld": "money"}


def draw_reason(rng: random.Random, outer: Subject) -> Clause:
    """A clause after weil, obwohl or wenn: a state, time or money to have, seldom any other."""
    subject = outer if outer in PRONOUN_SUBJECTS else draw_subject(rng, opens=False)
    while subject.about and subject.about == outer.about:
        subject = draw_subject(rng, opens=False)
    kind = rng.random()
    if kind < 0.5:
        return draw_state(rng, subject)
    if kind < 0.8:
        german, english = rng.choice(list(MEANS.items()))
        if rng.random() < 0.5:
            gender = "e" if german == "Zeit" else ""
            german, english = f"kein{gender} {german}", f"no {english}"
        return Clause(subject, HAVE, objects=(Phrase(german, english),))
    return draw_clause(rng, subject)


def tenses_fit(conjunction: str, outer: Clause, inner: Clause) -> bool:
    """Both clauses are past or neither is; after wenn neither is."""
    is_past = [clause.mode in ("past", "perfect") for clause in (outer, inner)]
    return not any(is_past) if conjunction == "wenn" else is_past[0] == is_past[1]


def reasoned(rng: random.Random) -> Pair:
    """Ich trinke Wasser, weil ich müde bin. Wenn er Zeit hat, liest er ein Buch."""
    german_conjunction, english_conjunction = rng.choice(list(CONJUNCTIONS.items()))
    reason_first = rng.random() < 0.4
    outer = draw_clause(rng, draw_subject(rng, opens=not reason_first))
    inner = draw_reason(rng, outer.subject)
    while not tenses_fit(german_conjunction, outer, inner):
        outer = draw_clause(rng, outer.subject)
        inner = draw_reason(rng, outer.subject)
    if outer.time:
        inner = replace(inner, time=None)
    german_inner = f"{german_conjunction} {german_final(inner)}"
    english_inner = f"{english_conjunction} {english_main(inner)}"
    if reason_first:
        return finish(
            f"{german_inner}, {german_inverted(outer)}", f"{english_inner}, {english_main(outer)}"
        )
    time_first = outer.time is not None and rng.random() < 0.3
    return finish(
        f"{german_main(outer, time_first)}, {german_inner}",
        f"{english_main(outer, time_first)} {english_inner}",
    )


def described(rng: random.Random) -> Pair:
    """Der Kaffee ist kalt. War das Mädchen gestern müde?"""
    if rng.random() < 0.4:
        clause = draw_state(rng, draw_subject(rng, opens=True))
    else:
        clause = draw_quality(rng)
    if rng.random() < 0.25 and not clause.nicht and clause.subject.person:
        return finish(german_inverted(clause), english_question(clause), "?")
    return finish(german_main(clause), english_main(clause))


def pleased(rng: random.Random) -> Pair:
    """Der Film gefällt dem Kind. The child likes the film."""
    thing = noun_phrase(
        rng, "text print view clothes thing outdoors", "nominative", "definite possessive"
    )
    if rng.random() < 0.5:
        german, _, english = rng.choice([("mir", "", "I"), ("dir", "", "you"), ("uns", "", "we")])
        verb = "like"
    else:
        person = noun_phrase(rng, PERSONS, "dative", "definite possessive proper")
        german, english = person.german, person.english
        verb = "like" if person.is_plural else "likes"
    finite = "gefallen" if thing.is_plural else "gefällt"
    if rng.random() < 0.5:
        return finish(join(german, finite, thing.german), join(english, verb, thing.english))
    return finish(join(thing.german, finite, german), join(english, verb, thing.english))


def ordered(rng: random.Random) -> Pair:
    """Einen Kaffee, bitte. Ich hätte gern zwei Äpfel. Bitte bringen Sie uns einen Tee."""
    order = noun_phrase(rng, ORDERS, "accusative", "indefinite numeral", adjective_share=0.5)
    german, english = rng.choice(
        [
            ("{}, bitte", "{}, please"),
            ("Ich hätte gern {}", "I would like {}"),
            ("Wir hätten gern {}", "We would like {}"),
            ("Bitte bringen Sie mir {}", "Please bring me {}"),
            ("Bitte bringen Sie uns {}", "Please bring us {}"),
            ("Ich nehme {}", "I will take {}"),
        ]
    )
    return finish(german.format(order.german), english.format(order.english))


def thanked(rng: random.Random) -> Pair:
    """Vielen Dank für den schönen Brief."""
    gift = noun_phrase(rng, f"{ORDERS} text print thing", "accusative", "definite")
    return finish(f"vielen Dank für {gift.german}", f"thank you very much for {gift.english}")


def priced(rng: random.Random) -> Pair:
    """Wie viel kostet das rote Fahrrad?"""
    goods = noun_phrase(rng, f"{DRINKS} food snack print thing clothes", "nominative", "definite")
    german, english = ("kosten", "do") if goods.is_plural else ("kostet", "does")
    return finish(
        f"wie viel {german} {goods.german}", f"how much {english} {goods.english} cost", "?"
    )


def located(rng: random.Random) -> Pair:
    """Entschuldigung, wo ist das Hotel? Gibt es hier einen Park? Hier gibt es keine Schule."""
    kind = rng.choice(["where", "is there", "there is no"])
    if kind == "where":
        place = noun_phrase(rng, "outdoors workplace", "nominative", "definite")
        german, english = ("sind", "are") if place.is_plural else ("ist", "is")
        return finish(
            f"Entschuldigung, wo {german} {place.german}",
            f"Excuse me, where {english} {place.english}",
            "?",
        )
    if kind == "is there":
        place = noun_phrase(rng, "outdoors workplace", "accusative", "indefinite")
        return finish(f"gibt es hier {place.german}", f"is there {place.english} here", "?")
    place = noun_phrase(rng, "outdoors workplace", "accusative", "no")
    verb = "are" if place.is_plural else "is"
    return finish(f"hier gibt es {place.german}", f"there {verb} {place.english} here")


def introduced(rng: random.Random) -> Pair:
    """Das ist mein Bruder. Das sind unsere neuen Bücher."""
    phrase = noun_phrase(
        rng,
        f"{PERSONS} animal print view thing clothes",
        "nominative",
        "possessive indefinite proper",
    )
    german, english = ("sind", "these are") if phrase.is_plural else ("ist", "this is")
    return finish(f"das {german} {phrase.german}", f"{english} {phrase.english}")


def greeted(rng: random.Random) -> Pair:
    """Guten Morgen, Frau Weber! Möchten Sie einen Kaffee?"""
    german, english = rng.choice([("Morgen", "morning"), ("Abend", "evening")])
    german_title, english_title = rng.choice([("Frau", "Mrs."), ("Herr", "Mr.")])
    name = rng.choice(["Müller", "Weber"])
    clause = draw_clause(rng, YOU_POLITE, may_negate=False)
    asked = finish(german_inverted(clause), english_question(clause), "?")
    return Pair(
        f"Guten {german}, {german_title} {name}! {asked.german}",
        f"Good {english}, {english_title} {name}! {asked.english}",
    )


TEMPLATES: dict[Callable[[random.Random], Pair], int] = {
    statement: 40,
    question: 14,
    word_question: 8,
    who_question: 4,
    reported: 9,
    reasoned: 7,
    described: 7,
    pleased: 6,
    ordered: 3,
    thanked: 1,
    priced: 1,
    located: 2,
    introduced: 2,
    greeted: 2,
}


# ---- The corpus ----


def words(sentence: str) -> list[str]:
    """The word forms of a sentence, without punctuation."""
    return [word.rstrip(".,!?") for word in sentence.split()]


def draw_pairs(rng: random.Random, count: int) -> list[Pair]:
    """Different German sentences of the wanted length, in the shares of TEMPLATES."""
    english_of: dict[str, str] = {}
    templates, weights = list(TEMPLATES), list(TEMPLATES.values())
    while len(english_of) < count:
        german, english = rng.choices(templates, weights)[0](rng)
        lengths = [len(words(german)), len(words(english))]
        if min(lengths) >= MIN_WORDS and max(lengths) <= MAX_WORDS:
            known = english_of.setdefault(german, english)
            assert known == english, f"two translations of {german!r}: {known!r}, {english!r}"
    return [Pair(german, english) for german, english in english_of.items()]


def make_splits(seed: int = SEED) -> dict[str, list[Pair]]:
    """The three files.

    A sentence is only held out if its words are common and no other sentence shares its
    translation, so that train can teach it but does not contain it.
    """
    rng = random.Random(seed)
    pairs = draw_pairs(rng, sum(SIZES.values()))
    rng.shuffle(pairs)  # the small templates run dry early and would only be in the first split
    frequency = Counter(word for pair in pairs for side in pair for word in words(side))
    translations = Counter(pair.english for pair in pairs)
    enough = 2 * MIN_SEEN  # a reserve: the sentences held out use up some of the words
    splits: dict[str, list[Pair]] = {name: [] for name in SIZES}
    for pair in pairs:
        is_common = min(frequency[word] for side in pair for word in words(side)) >= enough
        fits = is_common and translations[pair.english] == 1
        held_out = [name for name in ("valid", "test") if len(splits[name]) < SIZES[name]]
        splits[held_out[0] if fits and held_out else "train"].append(pair)
    return splits


def check_splits(splits: dict[str, list[Pair]]) -> None:
    """Assert what the module's docstring promises."""
    assert {name: len(pairs) for name, pairs in splits.items()} == SIZES
    every = [pair for name in SIZES for pair in splits[name]]
    assert len({pair.german for pair in every}) == len(every), "a German sentence occurs twice"
    for side in (0, 1):
        sentences = {name: {pair[side] for pair in pairs} for name, pairs in splits.items()}
        assert not sentences["train"] & (sentences["valid"] | sentences["test"]), "train is shared"
        assert not sentences["valid"] & sentences["test"], "valid and test share a sentence"
        seen = Counter(word for pair in splits["train"] for word in words(pair[side]))
        used = {word for name in ("valid", "test") for pair in splits[name]
                for word in words(pair[side])}  # fmt: skip
        rare = {word for word in used if seen[word] < MIN_SEEN}
        assert not rare, f"too rare in train: {rare}"
    for pair in every:
        assert all(MIN_WORDS <= len(words(side)) <= MAX_WORDS for side in pair), pair


def write_splits(folder: Path, splits: dict[str, list[Pair]]) -> None:
    """One file per split and language, one sentence per line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in splits.items():
        for side, language in enumerate(("de", "en")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8", newline="\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the sentences, check them and write them."""
    parser = argparse.ArgumentParser(description="Write the German to English quickstart data.")
    default = Path(__file__).parent / "quickstart"
    parser.add_argument("folder", nargs="?", type=Path, default=default, help="where to write")
    folder: Path = parser.parse_args(arguments).folder
    splits = make_splits()
    check_splits(splits)
    write_splits(folder, splits)
    sizes = ", ".join(f"{name} {len(pairs)}" for name, pairs in splits.items())
    print(f"{folder}: {sizes} pairs")


if __name__ == "__main__":
    main()
