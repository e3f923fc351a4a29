// Messages of the page, in English and Chinese: for elements with data-text or data-label.

import { byId, keep, kept } from "./dom.js";

export const MESSAGES = {
  title: ["Translate", "翻译"],
  otherLanguage: ["中文", "English"],
  theme: ["Light or dark", "浅色或深色"],
  from: ["Translate from", "源语言"],
  to: ["Translate to", "目标语言"],
  auto: ["Detect language", "检测语言"],
  detected: ["{language} (detected)", "{language}（检测到）"],
  swap: ["Swap languages and texts", "交换语言和文本"],
  source: ["Text to translate", "要翻译的文本"],
  target: ["Translation", "译文"],
  clear: ["Clear", "清空"],
  count: ["{count} / {limit}", "{count} / {limit}"],
  countOfParts: ["{count} characters in {parts} parts", "{count} 个字符，分 {parts} 部分"],
  copy: ["Copy", "复制"],
  copied: ["Copied.", "已复制。"],
  notCopied: ["The browser does not allow copying.", "浏览器不允许复制。"],
  alternatives: ["Alternatives", "其他译法"],
  attention: ["Attention", "注意力"],
  which: ["Sentence {number} of {total}", "第 {number} 句，共 {total} 句"],
  noAlternatives: ["The model finds no other translation.", "模型没有找到其他译法。"],
  attentionHint: [
    "What the model attended to for each word of the translation. It does not explain why it chose a word.",
    "模型为译文的每个词读了原文的哪些词。它不说明为什么选了某个词。",
  ],
  attentionTooLong: ["It is shown for sentences of at most {limit} characters.", "只能显示不超过 {limit} 个字符的句子。"],
  wordPair: ["{word}: {others}", "{word}：{others}"],
  wordAlone: ["{word}: not aligned with a word", "{word}：没有对应的词"],
  more: ["Files, glossary, history", "文件、术语表、历史记录"],
  files: ["Files", "文件"],
  filesHint: [
    "Text, Markdown, HTML and subtitles. You can also drop them on the page.",
    "纯文本、Markdown、HTML 和字幕。也可以拖放到页面上。",
  ],
  chooseFiles: ["Choose files", "选择文件"],
  fileWaits: ["waiting", "等待中"],
  fileDone: ["done", "完成"],
  fileStopped: ["canceled", "已取消"],
  fileKind: ["This file type is not supported.", "不翻译这种文件。"],
  fileEncoding: ["The file is not UTF-8.", "文件不是 UTF-8 编码。"],
  fileSize: ["The file is larger than {limit} MB.", "文件超过 {limit} MB。"],
  partTooLong: [
    "A part of {count} characters cannot be split; the limit of the server is {limit}.",
    "有一部分无法再分：它有 {count} 个字符，而服务器最多接受 {limit} 个。",
  ],
  save: ["Save", "保存"],
  cancelFile: ["Cancel {name}", "取消 {name}"],
  glossary: ["Glossary", "术语表"],
  glossaryHint: ["Your own translations into {language}. They stay in this browser.", "您自己的{language}译法，只保存在此浏览器中。"],
  term: ["Term", "术语"],
  removeTerm: ["Remove {term}", "移除 {term}"],
  history: ["History", "历史记录"],
  keepHere: ["Keep in this browser", "保存在此浏览器中"],
  keys: [
    "Ctrl+Enter translates at once. In the translation, arrow keys go from word to word; Enter shows alternatives.",
    "Ctrl+Enter 立即翻译。在译文中，方向键逐词移动，Enter 显示其他译法。",
  ],
  privacy: ["Texts go to this server and nowhere else.", "文本只发送到此服务器，不会发送到别处。"],
  tokenTitle: ["Token", "令牌"],
  tokenNeeded: ["This server requires a token. Ask its operator for it.", "此服务器需要令牌，可向其管理者索取。"],
  tokenWrong: ["The server does not accept this token.", "服务器不接受这个令牌。"],
  enterToken: ["Enter the token", "输入令牌"],
  ok: ["OK", "确定"],
  cancel: ["Cancel", "取消"],
  again: ["Try again", "重试"],
  offline: ["The server cannot be reached.", "无法连接服务器。"],
  waiting: ["The server is busy; trying again in {seconds} s.", "服务器繁忙；{seconds} 秒后重试。"],
  busy: ["The server is still busy.", "服务器仍然繁忙。"],
  refused: ["The server cannot translate this: {message}", "服务器无法翻译：{message}"],
  failed: ["The server failed (status {status}).", "服务器出错（状态 {status}）。"],
  plain: ["{text}", "{text}"],
};

const TAGS = ["en", "zh-Hans"];

let ui = 0; // index of the current language
const given = new WeakMap(); // the values of an element's message

/** An error for the user: the key of a message and its values. */
export class Refusal extends Error {
  constructor(key, values = {}, retryAfter = 0) {
    super(key);
    this.values = values;
    this.retryAfter = retryAfter; // seconds; 0: do not retry
  }
}

/** Return a message. Numbers are formatted for the language, and functions called. */
export function message(key, values = {}) {
  return MESSAGES[key][ui].replace(/\{(\w+)\}/g, (_, name) => {
    const value = values[name];
    if (typeof value === "function") return value();
    return typeof value === "number" ? value.toLocaleString(TAGS[ui]) : value;
  });
}

/** Show a message in an element; it follows changes of the language. */
export function say(spoken, key, values) {
  spoken.dataset.text = key;
  given.set(spoken, values);
  spoken.textContent = message(key, values);
  return spoken;
}

/** Set the label, tooltip or placeholder of an element. */
export function label(named, key, values) {
  named.dataset.label = key;
  given.set(named, values);
  const name = message(key, values);
  named.setAttribute("aria-label", name);
  named[named.localName === "button" ? "title" : "placeholder"] = name;
  return named;
}

/** Return the name of a language in the language of the page; its code if it has none. */
export function languageName(code) {
  try {
    return new Intl.DisplayNames([TAGS[ui]], { type: "language" }).of(code);
  } catch {
    return code;
  }
}

export function setUpUiLanguage() {
  const ofBrowser = navigator.languages.map((tag) => TAGS.findIndex((own) => own.slice(0, 2) === tag.slice(0, 2)));
  ui = kept("ui", ofBrowser.find((place) => place >= 0) ?? 0);
  sayAll();
  byId("ui-language").addEventListener("click", () => {
    ui = 1 - ui;
    keep("ui", ui);
    sayAll();
  });
}

function sayAll() {
  document.documentElement.lang = TAGS[ui];
  document.title = message("title");
  byId("ui-language").lang = TAGS[1 - ui];
  for (const each of document.querySelectorAll("[data-text]")) say(each, each.dataset.text, given.get(each));
  for (const each of document.querySelectorAll("[data-label]")) label(each, each.dataset.label, given.get(each));
}

/** Show a status message. */
export const tell = (key, values) => say(byId("status"), key, values);

/** Announce a message to screen readers. */
export const speak = (key, values) => say(byId("spoken"), key, values);

/** Show an error, with a button for an action. */
export function warn(error, todo, act) {
  const [text, does] = byId("alert").children;
  say(text, error.message, error.values);
  say(does, todo).onclick = act;
  byId("alert").hidden = false;
}
