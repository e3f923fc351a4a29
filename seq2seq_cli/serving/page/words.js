// The words of both boxes. A word that is pointed at, or that the keyboard is at, shows the words on
// the other side that belong to it. Below the box to type in lies its text once more, word by word.

import { byId, element } from "./dom.js";
import { speak } from "./messages.js";
import { placesOf } from "./texts.js";

const [typed, mirror, target] = [byId("source"), byId("source-words"), byId("target")];

let sentences = []; // of the translation that is shown
let pinned = null; // the word that the keyboard or a finger is at: { side, sentence, word }

/** Return what the page needs of a sentence of the server, whose positions count code points. */
export function sentenceOf(event, start) {
  return {
    start, // in the text, in code units, as all positions here
    source: event.source,
    sourceWords: inUnits(event.source, event.sourceWords),
    before: event.text.slice(0, event.text.length - event.target.length), // what is between sentences
    ...translationOf(event),
  };
}

/** Return a translation of a sentence, the best or an alternative. */
export function translationOf({ target: text, targetWords, alignment, attention }) {
  return { target: text, targetWords: inUnits(text, targetWords), alignment, attention };
}

function inUnits(text, ranges) {
  const places = placesOf(text);
  return ranges.map(([start, end]) => [places[start], places[end]]);
}

/** Show what is typed, whose words are not known yet. */
export function showTyped() {
  showMirror([typed.value]);
}

function showMirror(content) {
  mirror.replaceChildren(...content, " "); // without which the last line end would have no height
}

/** Show the sentences of a translation that is under way; those that are there already stay. */
export function showSoFar(translated) {
  if (translated !== sentences || translated.length < target.childElementCount) {
    [sentences, pinned] = [translated, null];
    target.replaceChildren();
  }
  for (const [number, sentence] of sentences.entries()) {
    if (number < target.childElementCount) continue;
    target.append(sentence.before, element("span", {}, ...targetNodes(sentence, number)));
  }
}

/** Show a translation, and let its words be pointed at. */
export function show({ text, sentences: translated, tail }) {
  showSoFar(translated);
  target.append(tail);
  const nodes = [];
  let position = 0;
  sentences.forEach(({ source, sourceWords, start }, number) => {
    nodes.push(text.slice(position, start), ...wordNodes("source", number, source, sourceWords));
    position = start + source.length;
  });
  showMirror([...nodes, text.slice(position)]);
}

/** Show a sentence of the target anew: another translation has been chosen. */
export function changeTarget(number) {
  target.children[number].replaceChildren(...targetNodes(sentences[number], number));
}

const targetNodes = (sentence, number) => wordNodes("target", number, sentence.target, sentence.targetWords);

function wordNodes(side, sentence, text, ranges) {
  const nodes = [];
  let position = 0;
  ranges.forEach(([start, end], word) => {
    const place = { "data-side": side, "data-sentence": sentence, "data-word": word };
    nodes.push(text.slice(position, start), element("span", { class: "word", ...place }, text.slice(start, end)));
    position = end;
  });
  return [...nodes, text.slice(position)];
}

/** Follow the mouse, fingers and keys; `onPlace(number)` is told the sentence that they choose. */
export function setUpWords(onPlace) {
  const choose = (place) => {
    pin(place);
    if (place) onPlace(place.sentence);
  };
  target.addEventListener("pointerover", (event) => point(placeOf(event.target) ?? pinned));
  typed.addEventListener("pointermove", ({ clientX, clientY }) => {
    const below = document.elementsFromPoint(clientX, clientY);
    point(placeOf(below.find((each) => each.matches("#source-words .word"))) ?? pinned);
  });
  for (const box of [target, typed]) {
    box.addEventListener("pointerleave", () => point(pinned));
    box.addEventListener("blur", () => pin(null));
  }
  target.addEventListener("click", (event) => choose(placeOf(event.target)));
  typed.addEventListener("click", () => choose(placeOfCaret()));
  typed.addEventListener("keyup", ({ key }) => {
    if (/^(?:Arrow|Home|End|Page)/.test(key)) choose(placeOfCaret());
  });
  target.addEventListener("keydown", (event) => {
    const place = placeAfter(event.key);
    if (!place || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    event.preventDefault();
    choose(place);
    speakWords(place);
  });
}

function pin(place) {
  pinned = place;
  point(place);
  for (const word of document.querySelectorAll(".aligned, .pointed")) reveal(word);
}

/** Mark a word and those that belong to it; null marks none. */
function point(place) {
  for (const word of document.querySelectorAll(".pointed, .aligned")) word.classList.remove("pointed", "aligned");
  if (!place) return;
  const partners = partnersOf(place);
  for (const word of document.querySelectorAll(`.word[data-sentence="${place.sentence}"]`)) {
    const number = Number(word.dataset.word);
    if (word.dataset.side !== place.side) word.classList.toggle("aligned", partners.includes(number));
    else word.classList.toggle("pointed", number === place.word);
  }
}

/** Scroll a box, but not the page, to where a word is. */
function reveal(word) {
  const box = word.closest(".scroll");
  const [inner, outer] = [word.getBoundingClientRect(), box.getBoundingClientRect()];
  box.scrollTop += Math.min(0, inner.top - outer.top) + Math.max(0, inner.bottom - outer.bottom);
}

/** Return the words of the other side that belong to a word, in order. */
function partnersOf({ side, sentence, word }) {
  const [own, theirs] = side === "source" ? [0, 1] : [1, 0];
  const pairs = sentences[sentence].alignment.filter((pair) => pair[own] === word);
  return pairs.map((pair) => pair[theirs]).sort((a, b) => a - b);
}

function placeOf(word) {
  const { side, sentence, word: number } = word?.dataset ?? {};
  return side ? { side, sentence: Number(sentence), word: Number(number) } : null;
}

/** Return the word at the caret of the box to type in, if what is typed is translated. */
function placeOfCaret() {
  const caret = typed.selectionStart;
  for (const [sentence, { start, sourceWords }] of mirror.querySelector(".word") ? sentences.entries() : []) {
    const word = sourceWords.findIndex(([first, end]) => start + first <= caret && caret <= start + end);
    if (word >= 0) return { side: "source", sentence, word };
  }
  return null;
}

/** Return the word of the target that a key leads to. */
function placeAfter(key) {
  const places = [...target.querySelectorAll(".word")].map(placeOf);
  const isPinned = ({ side, sentence, word }) => side === pinned?.side && sentence === pinned.sentence && word === pinned.word;
  const current = places.findIndex(isPinned);
  const forward = target.matches(":dir(rtl)") ? -1 : 1;
  const steps = { ArrowRight: forward, ArrowLeft: -forward, ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  return places[Math.max(0, Math.min(current + steps[key], places.length - 1))] ?? null;
}

function speakWords(place) {
  const { target: text, targetWords, source, sourceWords } = sentences[place.sentence];
  const word = text.slice(...targetWords[place.word]);
  const others = partnersOf(place).map((partner) => source.slice(...sourceWords[partner]));
  speak(others.length ? "wordPair" : "wordAlone", { word, others: others.join(" ") });
}
