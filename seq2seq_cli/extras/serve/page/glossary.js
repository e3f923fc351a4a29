// The glossary: terms and their translations, for each target language.

import { byId, element, keep, kept, onStored } from "./dom.js";
import { chosen } from "./languages.js";
import { label, languageName, say } from "./messages.js";

let terms = kept("glossary", {}); // by target language: pairs of a term and its translation
let onChange = () => {};

export function setUpGlossary(changed) {
  onChange = changed;
  byId("to").addEventListener("languages", show);
  onStored("glossary", () => {
    terms = kept("glossary", {});
    show();
    changed();
  });
  show();
}

/** Return the fields of a request in addition to its text. */
export function requestFields() {
  const whole = (terms[chosen().target] ?? []).filter((pair) => pair.every((side) => side.trim()));
  return { ...chosen(), glossary: Object.fromEntries(whole) };
}

function show() {
  const { target } = chosen();
  say(byId("glossary-hint"), "glossaryHint", { language: () => languageName(target) });
  byId("glossary").replaceChildren(...(terms[target] ?? []).map(row), row());
}

/** A row of the editor; the last one is empty, and filling it adds another. */
function row(pair = ["", ""]) {
  const fields = ["term", "target"].map((key, side) => {
    const field = element("input", { dir: "auto", oninput: read });
    field.value = pair[side];
    return label(field, key);
  });
  const remove = element("button", { class: "quiet", onclick: () => drop(made) }, "×");
  const made = element("li", {}, ...fields, label(remove, "removeTerm", { term: () => fields[0].value }));
  return made;
}

function drop(removed) {
  removed.nextElementSibling.querySelector("input").focus();
  removed.remove();
  read();
}

function read() {
  const rows = [...byId("glossary").children];
  const pairs = rows.map((each) => [...each.querySelectorAll("input")].map((field) => field.value));
  const filled = pairs.filter((pair) => pair.some((side) => side));
  if (filled.includes(pairs.at(-1))) byId("glossary").append(row());
  terms[chosen().target] = filled;
  keep("glossary", terms);
  onChange();
}
