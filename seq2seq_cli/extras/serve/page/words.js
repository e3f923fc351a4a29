// The words of both boxes: pointing at one (mouse, finger or keyboard) highlights the aligned words on the
// other side. Behind the text area is a copy of its text, word by word.

import { byId, element } from "./dom.js";
import { speak } from "./messages.js";
import { placesOf } from "./texts.js";

const [typed, mirror, target] = [byId("source"), byId("source-words"), byId("target")];

let sentences = []; // of the current translation
let pinned = null; // the place of the word chosen by keyboard or finger, such as "target 0 3"

/** Convert a sentence of the server, whose positions count code points. */
export function sentenceOf(event, start) {
  return {
    start, // in the text; all positions here count code units
    source: event.source,
    sourceWords: inUnits(event.source, event.sourceWords),
    before: event.text.slice(0, event.text.length - event.target.length), // the text between sentences
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

/** Show a copy of the typed text, with words if they are known. */
export function showTyped(...content) {
  mirror.replaceChildren(...content, " "); // gives the last line end a height
}

/** Show the sentences that have arrived. */
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

/** Show a translation whose words can be pointed at. */
export function show({ text, sentences: translated, tail }) {
  showSoFar(translated);
  target.append(tail);
  const nodes = [];
  let position = 0;
  sentences.forEach(({ source, sourceWords, start }, number) => {
    nodes.push(text.slice(position, start), ...wordNodes("source", number, source, sourceWords));
    position = start + source.length;
  });
  showTyped(...nodes, text.slice(position));
}

/** Update a sentence of the target: another translation has been chosen. */
export function changeTarget(number) {
  target.children[number].replaceChildren(...targetNodes(sentences[number], number));
}

const targetNodes = (sentence, number) => wordNodes("target", number, sentence.target, sentence.targetWords);

function wordNodes(side, sentence, text, ranges) {
  const nodes = [];
  let position = 0;
  ranges.forEach(([start, end], word) => {
    const marks = { class: "word", "data-place": `${side} ${sentence} ${word}` };
    nodes.push(text.slice(position, start), element("span", marks, text.slice(start, end)));
    position = end;
  });
  return [...nodes, text.slice(position)];
}

/** Follow mouse, fingers and keys; `onPlace(number)` is called with the chosen sentence. */
export function setUpWords(onPlace) {
  const choose = (place) => {
    pin(place);
    if (place) onPlace(numbersOf(place)[0]);
  };
  target.addEventListener("pointerover", (event) => point(placeOf(event.target) ?? pinned));
  typed.addEventListener("pointermove", ({ clientX, clientY }) => {
    const below = document.elementsFromPoint(clientX, clientY).filter((each) => mirror.contains(each));
    point(placeOf(below[0]) ?? pinned);
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
    if (!place || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    choose(place);
    const others = partnersOf(place).map((partner) => wordAt(partner)?.textContent).join(" ");
    speak(others ? "wordPair" : "wordAlone", { word: wordAt(place).textContent, others });
  });
}

const placeOf = (word) => word?.dataset.place ?? null;
const wordAt = (place) => document.querySelector(`[data-place="${place}"]`);
const numbersOf = (place) => place.split(" ").slice(1).map(Number); // of the sentence and of the word in it

function pin(place) {
  pinned = place;
  point(place);
  for (const word of document.querySelectorAll(".aligned, .pointed")) reveal(word);
}

/** Highlight a word and its aligned words; null: none. */
function point(place) {
  for (const word of document.querySelectorAll(".pointed, .aligned")) word.classList.remove("pointed", "aligned");
  const word = place && wordAt(place); // null if it has been edited
  if (!word) return;
  word.classList.add("pointed");
  for (const partner of partnersOf(place)) wordAt(partner)?.classList.add("aligned");
}

/** Return the places of the aligned words on the other side, in order. */
function partnersOf(place) {
  const [sentence, word] = numbersOf(place);
  const [own, theirs, side] = place.startsWith("source") ? [0, 1, "target"] : [1, 0, "source"];
  const partners = sentences[sentence].alignment.filter((pair) => pair[own] === word).map((pair) => pair[theirs]);
  return partners.sort((a, b) => a - b).map((partner) => `${side} ${sentence} ${partner}`);
}

/** Scroll a box, but not the page, to a word. */
function reveal(word) {
  const box = word.closest(".scroll");
  const [inner, outer] = [word.getBoundingClientRect(), box.getBoundingClientRect()];
  box.scrollTop += Math.min(0, inner.top - outer.top) + Math.max(0, inner.bottom - outer.bottom);
}

/** Return the place of the word at the caret, if the text is translated. */
function placeOfCaret() {
  const caret = typed.selectionStart;
  for (const [sentence, { start, sourceWords }] of sentences.entries()) {
    const word = sourceWords.findIndex(([first, end]) => start + first <= caret && caret <= start + end);
    if (word >= 0) return placeOf(wordAt(`source ${sentence} ${word}`));
  }
  return null;
}

/** Return the place of the target word that a key moves to. */
function placeAfter(key) {
  const places = [...target.querySelectorAll(".word")].map(placeOf);
  const forward = target.matches(":dir(rtl)") ? -1 : 1;
  const steps = { ArrowRight: forward, ArrowLeft: -forward, ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  const next = places.indexOf(pinned) + steps[key];
  return places[Math.max(0, Math.min(next, places.length - 1))] ?? null;
}
