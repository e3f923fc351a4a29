// Files: read here, translated in pieces, and saved under their name with the target language.

import { byId, element } from "./dom.js";
import { requestFields } from "./glossary.js";
import { canTranslate } from "./languages.js";
import { label, message, Refusal, say, speak } from "./messages.js";
import { ask, settings } from "./server.js";
import { contextsOf, piecesOf } from "./texts.js";

const FORMATS = {
  txt: "text", md: "markdown", markdown: "markdown", html: "html", htm: "html", srt: "subtitles", vtt: "subtitles",
};
const MOST_BYTES = 20_000_000;

let queue = Promise.resolve(); // one file after the other

export function setUpFiles() {
  const input = byId("file-input");
  byId("choose-files").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    add(input.files);
    input.value = ""; // so that the same file can be chosen again
  });
  addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    byId("more").open = true;
    add(event.dataTransfer.files);
  });
}

function add(files) {
  for (const file of files) {
    const [row, fields] = [new Row(file.name), requestFields()];
    queue = queue.finally(() => process(file, fields, row));
  }
}

async function process(file, fields, row) {
  try {
    row.signal.throwIfAborted();
    row.endWith(await translated(file, fields, row), fields.target);
  } catch (error) {
    if (!row.signal.aborted) row.end(error.message, error.values);
  }
}

/** Return the translation of a file; markup is kept. */
async function translated(file, fields, row) {
  const format = FORMATS[file.name.split(".").at(-1).toLowerCase()];
  if (!format) throw new Refusal("fileKind");
  const [mark, text] = await textOf(file);
  const pieces = piecesOf(text, settings.charLimit, format);
  const send = (path, sent) => ask(path, sent, row.signal, (key, values) => row.tell(key, values));
  let { source } = fields;
  if (source === "auto" && text) { // detected once for all pieces
    const languages = await send("detect", { q: pieces[0], format });
    source = languages.find(({ language }) => canTranslate(language, fields.target)).language;
  }
  const contextOf = contextsOf(text, format);
  let [result, done] = [mark, 0];
  for (const piece of pieces) {
    row.showShare(done / text.length);
    const [before, after] = contextOf(piece);
    const { translatedText } = await send("translate", { ...fields, source, format, q: before + piece + after });
    result += translatedText.slice(before.length, translatedText.length - after.length);
    done += piece.length;
  }
  return result;
}

/** Return a byte order mark, if the file has one, and its text. */
async function textOf(file) {
  if (file.size > MOST_BYTES) throw new Refusal("fileSize", { limit: MOST_BYTES / 1e6 });
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    return text.startsWith("\ufeff") ? ["\ufeff", text.slice(1)] : ["", text];
  } catch {
    throw new Refusal("fileEncoding");
  }
}

/** A file in the list. */
class Row {
  constructor(name) {
    const canceled = new AbortController();
    Object.assign(this, { name, signal: canceled.signal });
    this.state = element("span", { class: "hint" });
    this.progress = element("progress", { max: 1, value: 0, "aria-label": name });
    const cancel = element("button", { class: "link", onclick: () => canceled.abort() });
    this.action = say(label(cancel, "cancelFile", { name }), "cancel", { name });
    byId("files").append(element("li", {}, element("bdi", {}, name), this.action, this.progress, this.state));
    this.tell("fileWaits");
    this.signal.addEventListener("abort", () => this.end("fileStopped"));
  }

  tell(key, values) {
    say(this.state, key, values);
  }

  showShare(share) {
    this.progress.value = share;
    this.tell("plain", { text: `${Math.floor(100 * share)} %` });
  }

  end(key, values, action = "") {
    this.progress.remove();
    this.action.replaceWith(action);
    this.tell(key, values);
    speak("wordPair", { word: this.name, others: () => message(key, values) });
  }

  endWith(text, language) {
    const href = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
    const link = element("a", { class: "link", href, download: this.name.replace(/(\.\w+)$/, `.${language}$1`) });
    this.end("fileDone", {}, say(link, "save"));
    link.click();
  }
}
