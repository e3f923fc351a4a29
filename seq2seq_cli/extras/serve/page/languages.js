// The choice of languages, among the pairs of the server.

import { byId, element, keep, kept } from "./dom.js";
import { languageName, say } from "./messages.js";

const [from, to] = [byId("from"), byId("to")];
const AUTO = "auto";

let targets = new Map(); // of every source language
let found = null; // the detected language of the text

export function setUpLanguages(languages, onChange) {
  targets = new Map(languages.map(({ code, targets: own }) => [code, own.filter((each) => each !== code)]));
  const sources = [...targets.keys()].filter((code) => targets.get(code).length);
  targets.set(AUTO, [...new Set(sources.flatMap((code) => targets.get(code)))]);
  from.replaceChildren(say(element("option", { value: AUTO }), "auto"), ...sources.map(option));
  const last = kept("languages", { source: sources.length > 1 ? AUTO : sources[0] });
  choose(last.source, last.target);
  for (const select of [from, to]) {
    select.addEventListener("change", () => {
      choose(from.value, to.value);
      onChange();
    });
  }
}

const option = (code) => say(element("option", { value: code }), "plain", { text: () => languageName(code) });

/** Choose two languages, or the closest pair. */
export function choose(source, target) {
  from.value = source;
  if (from.selectedIndex < 0) from.value = AUTO;
  to.replaceChildren(...targets.get(from.value).map(option));
  to.value = target;
  if (to.selectedIndex < 0) to.selectedIndex = 0;
  keep("languages", chosen());
  showDetected(null);
  to.dispatchEvent(new Event("languages"));
}

export const chosen = () => ({ source: from.value, target: to.value });
export const canTranslate = (source, target) => targets.get(source)?.includes(target) ?? false;

/** Return the language of the text, if it is known. */
export const sourceLanguage = () => (from.value === AUTO ? found : from.value);

/** Show the language that was detected; null: none. */
export function showDetected(code) {
  found = code;
  if (code && from.value === AUTO) say(from.options[0], "detected", { language: () => languageName(code) });
  else say(from.options[0], "auto");
  byId("swap").disabled = !canTranslate(to.value, sourceLanguage());
  byId("source").lang = sourceLanguage() ?? "";
  byId("target").lang = to.value;
}
