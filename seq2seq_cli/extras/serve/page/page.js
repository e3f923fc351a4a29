// The main module of the page: translates the text typed.

import { lookAt, lookInto, setUpCloser } from "./closer.js";
import { byId, keep, kept } from "./dom.js";
import { setUpFiles } from "./files.js";
import { requestFields, setUpGlossary } from "./glossary.js";
import { addToHistory, beginEntry, setUpHistory } from "./history.js";
import { choose, chosen, setUpLanguages, showDetected, sourceLanguage } from "./languages.js";
import { say, setUpUiLanguage, speak, tell, warn } from "./messages.js";
import { explain, readSettings, settings, setUpToken, stream } from "./server.js";
import { lengthOf, piecesOf, placesOf } from "./texts.js";
import * as words from "./words.js";

const DELAY = 350; // milliseconds after the last key until a text is translated
const PATIENCE = 500; // milliseconds until sentences are shown as they arrive
const NOTHING = { fields: {}, sentences: [], tail: "" };

const source = byId("source");
let timer = 0;
let running = new AbortController(); // of the current request
let shown = null; // the current translation: { text, fields, sentences, tail, isWhole }
const choices = new Map(); // sentences of the text, and the alternatives chosen for them

start();

async function start() {
  setUpUiLanguage();
  setUpTheme();
  byId("main").hidden = false;
  try {
    setUpLanguages(await readSettings(), () => setSource(source.value));
  } catch (error) {
    return warn(error, "again", () => location.reload());
  }
  setUpGlossary(() => {
    choices.clear();
    schedule();
  });
  setUpHistory(openEntry);
  setUpFiles();
  setUpCloser(showChoice);
  words.setUpWords(lookAt);
  listen();
  source.focus();
  await setUpToken();
  setSource(source.value); // the browser may have restored it
}

function listen() {
  const listeners = { clear: () => openEntry({ source: "" }), swap, copy };
  for (const [id, listener] of Object.entries(listeners)) byId(id).addEventListener("click", listener);
  source.addEventListener("input", (event) => {
    showTyped();
    if (!event.isComposing) schedule();
  });
  source.addEventListener("compositionend", schedule);
  source.addEventListener("change", beginEntry);
  source.addEventListener("keydown", ({ key, ctrlKey, metaKey }) => {
    if (key === "Enter" && (ctrlKey || metaKey)) translate().then(speakTarget);
  });
  addEventListener("online", schedule);
}

/** Translate soon. */
function schedule() {
  running.abort();
  clearTimeout(timer);
  timer = setTimeout(translate, DELAY);
}

async function translate() {
  clearTimeout(timer);
  running.abort();
  running = new AbortController();
  const { signal } = running;
  byId("alert").hidden = true;
  const hasText = /\S/.test(source.value);
  setBusy(hasText);
  if (!hasText) return show(null);
  try {
    show(await translationOf(source.value, signal));
  } catch (error) {
    explain(error, translate);
  } finally {
    if (running.signal === signal) setBusy(false);
  }
}

/** Translate a text, in pieces if it is long; show its sentences as they arrive if it takes long. */
async function translationOf(text, signal) {
  const draft = { text, fields: requestFields(), sentences: [], tail: "", begun: performance.now() };
  let position = 0;
  for (const piece of piecesOf(text, settings.charLimit)) {
    const { detectedLanguage } = await translatePiece(draft, piece, position, signal);
    if (detectedLanguage) draft.fields.source = detectedLanguage.language;
    position += piece.length;
  }
  return Object.assign(draft, { isWhole: true });
}

/** Add the sentences of a piece of the text, and return the answer. */
async function translatePiece(draft, piece, position, signal) {
  const places = placesOf(piece);
  const { tail, sentences: { length: known } } = draft;
  let written = 0; // characters
  const onStart = () => { // perhaps again
    draft.sentences.length = known;
    draft.tail = tail;
    written = 0;
  };
  const onSentence = (event) => {
    const sentence = words.sentenceOf(event, position + places[event.sourceStart]);
    Object.assign(sentence, { before: draft.tail + sentence.before }, choices.get(sentence.source));
    draft.tail = "";
    draft.sentences.push(sentence);
    written += event.text.length;
    if (performance.now() - draft.begun > PATIENCE) showSoFar(draft);
  };
  const answer = await stream({ ...draft.fields, q: piece, alignments: true }, signal, onStart, onSentence);
  draft.tail += answer.translatedText.slice(written);
  return answer;
}

function showSoFar(draft) {
  if (shown !== draft) lookInto([], {});
  shown = draft;
  const { text, sentences } = draft;
  words.showSoFar(sentences);
  const { start, source: last } = sentences.at(-1);
  byId("progress").value = (start + last.length) / text.length;
  byId("progress").hidden = false;
}

/** Show a whole translation; null clears it. */
function show(translation) {
  shown = translation;
  const { fields, sentences } = shown ?? NOTHING;
  words.show(shown ?? { ...NOTHING, text: source.value });
  showDetected(fields.source);
  for (const id of ["copy", "show-alternatives", "show-attention"]) byId(id).disabled = !shown;
  lookInto(sentences, fields);
  if (shown) remember();
  else beginEntry();
}

const targetText = () => shown.sentences.map(({ before, target }) => before + target).join("") + shown.tail;

const speakTarget = () => shown && speak("plain", { text: targetText() });

function remember() {
  const { text, fields } = shown;
  addToHistory({ from: fields.source, to: fields.target, source: text, target: targetText() });
}

function showChoice(number, translation) {
  choices.set(shown.sentences[number].source, translation);
  words.changeTarget(number);
  remember();
}

function showTyped() {
  words.showTyped(source.value);
  const [count, limit] = [lengthOf(source.value), settings.charLimit];
  if (count <= limit) say(byId("count"), "count", { count, limit });
  else say(byId("count"), "countOfParts", { count, parts: piecesOf(source.value, limit).length });
  byId("clear").hidden = !count;
}

function setBusy(isBusy) {
  byId("target").setAttribute("aria-busy", isBusy);
  byId("progress").hidden = true;
  tell("plain", { text: "" });
}

function setSource(text) {
  source.value = text;
  choices.clear();
  beginEntry();
  showTyped();
  translate();
}

function openEntry({ from, to, source: text }) {
  if (from) choose(from, to);
  setSource(text);
  source.focus();
}

function swap() {
  const text = shown?.isWhole && shown.text === source.value ? targetText() : source.value;
  choose(chosen().target, sourceLanguage());
  setSource(text);
}

async function copy() {
  try {
    await navigator.clipboard.writeText(targetText());
  } catch { // the clipboard requires HTTPS or localhost
    getSelection().selectAllChildren(byId("target"));
    if (!document.execCommand("copy")) return tell("notCopied");
  }
  tell("copied");
}

function setUpTheme() {
  const [root, dark] = [document.documentElement, matchMedia("(prefers-color-scheme: dark)")];
  root.dataset.theme = kept("theme", "");
  byId("theme").addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
    root.dataset.theme = isDark === dark.matches ? (isDark ? "light" : "dark") : ""; // follow the system
    keep("theme", root.dataset.theme);
  });
}
