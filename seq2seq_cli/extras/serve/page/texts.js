// Texts: positions in code points, as in the server, and pieces within its limit.

import { Refusal } from "./messages.js";

/** Return the number of code points; a string of JavaScript counts UTF-16 code units. */
export const lengthOf = (text) => [...text].length;

/** Return the index of every code point in the string, and the end of the string. */
export function placesOf(text) {
  const places = [0];
  for (const character of text) places.push(places.at(-1) + character.length);
  return places;
}

/** Split a text into pieces of at most `limit` code points, each with its context. */
export function piecesOf(text, limit, format = "text") {
  const pieces = [];
  const contextOf = contextsOf(text, format);
  let size = limit + 1;
  for (const part of PARTS[format](text, limit)) {
    const [before, after] = contextOf(part).map(lengthOf);
    const length = lengthOf(part) + after;
    if (before + length > limit) throw new Refusal("partTooLong", { count: length, limit });
    if (size + length > limit) {
      pieces.push("");
      size = before;
    }
    pieces.push(pieces.pop() + part);
    size += length;
  }
  return pieces;
}

const LABEL = String.raw`\[(?!\^|\s*\])((?:[^\[\]\\]|\\.){1,999})\]`; // of a link of Markdown, not of a footnote
const LABELS = new RegExp(LABEL, "g");
const DEFINITIONS = new RegExp(
  String.raw`^(?: {0,3}>)* {0,3}${LABEL}:[ \t]*(?:\r?\n)?[ \t]*(?:<[^<>\n]*>|\S+)(?:[ \t]*$|[ \t]+["'(])`, "gm",
);

function labelsIn(text, pattern) {
  return new Set([...text.matchAll(pattern)].map(([, label]) => label.trim().replace(/\s+/g, " ").toLowerCase()));
}

/**
 * Return what gives the texts to send before and after a piece, so that it is read as in the whole text:
 * subtitles as WebVTT, and a link of Markdown as one, for which its label has to be defined somewhere.
 */
export function contextsOf(text, format) {
  if (format === "subtitles" && text.startsWith("WEBVTT")) return () => ["WEBVTT\n\n", ""];
  if (format !== "markdown") return () => ["", ""];
  const defined = labelsIn(text, DEFINITIONS);
  return (piece) => {
    const own = labelsIn(piece, DEFINITIONS);
    const elsewhere = [...labelsIn(piece, LABELS)].filter((label) => defined.has(label) && !own.has(label));
    return ["", elsewhere.map((label) => `\n\n[${label}]: x`).join("")];
  };
}

// The parts of a text that must stay whole, by its format.
const PARTS = {
  text: (text, limit) => linesOf(text).flatMap((line) => sentencesOf(line, limit)),
  subtitles: (text) => joined(linesOf(text), (line, before) => isBlank(before)),
  markdown: markdownParts,
  html: htmlParts,
};

const linesOf = (text) => text.match(/[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$/g) ?? [];
const isBlank = (line) => line !== undefined && !line.trim();

/** Join lines; `begins` is true for the first line of a part. */
function joined(lines, begins) {
  const parts = [];
  lines.forEach((line, number) => {
    const isNew = begins(line, lines[number - 1]) || number === 0;
    parts.push(isNew ? line : parts.pop() + line);
  });
  return parts;
}

/** Split a line that is too long after sentences, otherwise after words, otherwise anywhere. */
function sentencesOf(line, limit) {
  const parts = [];
  while (true) {
    const places = placesOf(line.slice(0, 2 * limit + 2));
    if (places.length - 1 <= limit) return [...parts, line];
    const first = line.slice(0, places[limit]);
    const [part] = first.match(/^.*(?:[.!?…‽؟۔।॥။።։។៕།༎፧‼⁈⁉\u037e]["'”’»)]*\s+|[。！？｡．][”’」』）]*)/s) ?? first.match(/^.*\s/s) ?? [first];
    parts.push(part);
    line = line.slice(part.length);
  }
}

/** Split Markdown between blocks and list items, but not in code, front matter or HTML. */
function markdownParts(text) {
  let end = null; // matches the last line of the current block
  return joined(linesOf(text), (line, before) => {
    // An indented line may continue an item, and a piece that begins with --- or +++ would have front matter.
    const begins = !end && /^(?!---|\+\+\+)\S/.test(line) && (isBlank(before) || /^[-*+] /.test(line));
    const blocks = before === undefined ? [...FRONT_MATTER, ...LONG_BLOCKS] : LONG_BLOCKS;
    if (!end) end = endOfBlock(line, blocks);
    else if (end.test(line)) end = null;
    return begins;
  });
}

// The first and last line of blocks that may contain blank lines.
const FRONT_MATTER = [
  [/^---\s*$/, () => "^(---|\\.\\.\\.)\\s*$"],
  [/^\+\+\+\s*$/, () => "^\\+\\+\\+\\s*$"],
];
const LONG_BLOCKS = [
  [/^[\s>*+\-\d.)]*(`{3,})[^`]*$/, (fence) => `^[\\s>]*${fence}\`*\\s*$`],
  [/^[\s>*+\-\d.)]*(~{3,})/, (fence) => `^[\\s>]*${fence}~*\\s*$`],
  [/^ {0,3}<(pre|script|style|textarea)\b(?!.*<\/\1>)/i, (name) => `</${name}>`],
  [/^ {0,3}<!--(?!.*-->)/, () => "-->"],
  [/^ {0,3}<\/?[a-z]/i, () => "^\\s*$"],
];

function endOfBlock(line, blocks) {
  for (const [start, end] of blocks) {
    const found = line.match(start);
    if (found) return new RegExp(end(found[1]), "i");
  }
  return null;
}

const ATTRIBUTES = `(?:"[^"]*"|'[^']*'|[^'">])*`;
const TAG = new RegExp(
  "<!--(?:-?>|.*?(?:--!?>|$))"
  + `|<(iframe|noembed|noframes|script|style|textarea|title|xmp)(?=[\\s/>])${ATTRIBUTES}>.*?(?:</\\1[\\s/>]|$)`
  + `|<(\\/?)([a-z][^\\s/>]*)(${ATTRIBUTES})>`,
  "gis",
);
const words = (text) => new Set(text.split(" "));
const BLOCKS = words("article blockquote dd div dl dt h1 h2 h3 h4 h5 h6 li main ol p section table td th tr ul");
const UNDIVIDED = words("audio canvas code kbd math object pre samp select svg template tt var video");
const VOID = words("area base br col embed hr img input link meta wbr");

/** Split HTML before blocks, but not in elements that the server may not translate. */
function htmlParts(text) {
  const parts = [];
  let start = 0;
  let [outer, depth] = [null, 0]; // the element that must not be split, and its depth
  for (const { 2: slash, 3: name = "", 4: attributes = "", index } of text.matchAll(TAG)) {
    const kind = name.toLowerCase();
    if (outer) {
      if (kind === outer) depth += slash ? -1 : 1;
      if (!depth) outer = null;
    } else if (!slash) {
      if (BLOCKS.has(kind)) {
        parts.push(text.slice(start, index));
        start = index;
      }
      if ((UNDIVIDED.has(kind) || /translate/i.test(attributes)) && !VOID.has(kind)) [outer, depth] = [kind, 1];
    }
  }
  return [...parts, text.slice(start)];
}
