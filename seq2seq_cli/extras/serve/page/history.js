// The latest translations, which stay in the browser.

import { byId, element, keep, kept, onStored } from "./dom.js";

const MOST_ENTRIES = 50;
const LONGEST = 5_000; // characters of a text that is kept

let entries = kept("history", []); // the latest first
let isNewText = true; // or the latest entry is an earlier state of the same text
let onOpen = () => {};

export function setUpHistory(opened) {
  onOpen = opened;
  const isKept = byId("keep-history");
  isKept.checked = kept("keepHistory", true);
  isKept.addEventListener("change", () => keep("keepHistory", isKept.checked));
  byId("clear-history").addEventListener("click", () => {
    entries = [];
    isNewText = true;
    save();
  });
  onStored("history", () => {
    entries = kept("history", []);
    isNewText = true;
    show();
  });
  show();
}

/** Begin a new entry with the next translation. */
export function beginEntry() {
  isNewText = true;
}

/** Add a translation: { source, target, from, to }. */
export function addToHistory(entry) {
  if (!byId("keep-history").checked || entry.source.length > LONGEST) return;
  const others = entries.slice(isNewText ? 0 : 1).filter(({ source, to }) => source !== entry.source || to !== entry.to);
  entries = [entry, ...others].slice(0, MOST_ENTRIES);
  isNewText = false;
  save();
}

function save() {
  keep("history", entries);
  show();
}

function show() {
  byId("clear-history").hidden = !entries.length;
  byId("history").replaceChildren(...entries.map((entry) => {
    const texts = [element("bdi", {}, entry.source), element("bdi", { lang: entry.to }, entry.target)];
    const open = element("button", { class: "quiet", onclick: () => onOpen(entry) }, ...texts);
    return element("li", {}, open);
  }));
}
