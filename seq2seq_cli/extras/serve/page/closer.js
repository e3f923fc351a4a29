// Details of one sentence: alternative translations to choose from, and attention.

import { byId, element } from "./dom.js";
import { say } from "./messages.js";
import { ask, explain, settings } from "./server.js";
import { translationOf } from "./words.js";

const PARTS = ["alternatives", "attention"];
const switchOf = (part) => byId(`show-${part}`);
const isOpen = (part) => switchOf(part).getAttribute("aria-expanded") === "true";

let [sentences, fields] = [[], {}]; // of the current translation and its request
let number = 0; // of the current sentence
let request = new AbortController();
let onChoice = () => {};

/** `chosen(number, translation)` is called when the user chooses another translation. */
export function setUpCloser(chosen) {
  onChoice = chosen;
  switchOf("alternatives").hidden = !settings.alternativesLimit;
  for (const part of PARTS) switchOf(part).addEventListener("click", () => open(part, !isOpen(part)));
  byId("target").addEventListener("keydown", async ({ key }) => {
    if (key !== "Enter" || !settings.alternativesLimit) return;
    await open("alternatives", true);
    focusChosen();
  });
}

function open(part, isOpened) {
  switchOf(part).setAttribute("aria-expanded", isOpened);
  return show();
}

/** Show the details of a new translation, the answer to a request with these fields. */
export function lookInto(translated, ofRequest) {
  [sentences, fields] = [translated, ofRequest];
  number = Math.max(0, Math.min(number, sentences.length - 1));
  return show();
}

/** Show the details of a sentence. */
export function lookAt(wanted) {
  if (wanted === number) return;
  number = wanted;
  show();
}

async function show() {
  request.abort();
  request = new AbortController();
  const sentence = sentences[number];
  byId("closer").hidden = !sentence || !PARTS.some(isOpen);
  for (const part of PARTS) byId(part).hidden = !isOpen(part);
  if (byId("closer").hidden) return;
  say(byId("which"), "which", { number: number + 1, total: sentences.length });
  try {
    const translations = await translationsOf(sentence, request.signal);
    showAlternatives(sentence, translations);
    showAttention(sentence);
  } catch (error) {
    explain(error, show);
  }
}

const hasAttention = ({ source }) => [...source].length <= settings.attentionLimit;

/** Return the current translation and, if requested, alternatives, from a wider search. */
async function translationsOf(sentence, signal) {
  const plain = { ...fields, q: sentence.source, alignments: true, attention: hasAttention(sentence) };
  const wider = isOpen("alternatives") ? [{ ...plain, alternatives: settings.alternativesLimit }] : [];
  const answers = await Promise.all([plain, ...wider].map((each) => ask("translate", each, signal)));
  const bests = answers.filter((answer) => answer.sentences.length === 1).map((answer) => answer.sentences[0]);
  const found = bests.flatMap((best) => [best, ...(best.alternatives ?? [])]);
  const distinct = new Map(found.filter(({ target }) => target).map((each) => [each.target, translationOf(each)]));
  sentence.attention ??= distinct.get(sentence.target)?.attention;
  return [...distinct.values()];
}

function showAlternatives(sentence, translations) {
  const hadFocus = byId("alternatives").contains(document.activeElement);
  const choices = translations.map((translation) => {
    const radio = element("input", { type: "radio", name: "alternative", onchange: () => choose(sentence, translation) });
    radio.checked = translation.target === sentence.target;
    return element("label", {}, radio, element("bdi", { lang: fields.target }, translation.target));
  });
  const none = say(element("p", { class: "hint" }), "noAlternatives");
  byId("choices").replaceChildren(...(choices.length > 1 ? choices : [none]));
  if (hadFocus) focusChosen();
}

const focusChosen = () => byId("choices").querySelector(":checked")?.focus();

function choose(sentence, translation) {
  Object.assign(sentence, translation);
  onChoice(number, translation);
  showAttention(sentence);
}

/** Show attention as a table with a row for each word of the translation. */
function showAttention(sentence) {
  const { source, sourceWords, target, targetWords, attention = [] } = sentence;
  const hint = hasAttention(sentence) ? "attentionHint" : "attentionTooLong";
  say(byId("attention-hint"), hint, { limit: settings.attentionLimit });
  byId("weights").hidden = !hasAttention(sentence);
  const columns = sourceWords.map((range) => source.slice(...range));
  const rows = targetWords.map((range) => target.slice(...range));
  const title = (scope, word) => element("th", { scope }, element("bdi", {}, word));
  byId("weights").replaceChildren(
    element("thead", {}, element("tr", {}, element("td"), ...columns.map((word) => title("col", word)))),
    element("tbody", {}, ...attention.map((weights, row) => element("tr", {}, title("row", rows[row]),
      ...weights.map((weight, column) => cell(weight, `${rows[row]} → ${columns[column]}`))))));
}

function cell(weight, words) {
  const percent = `${Math.round(100 * weight)} %`;
  const made = element("td", { title: `${words}: ${percent}` }, element("span", { class: "unseen" }, percent));
  made.style.setProperty("--weight", Math.sqrt(weight).toFixed(2)); // makes small weights visible
  return made;
}
