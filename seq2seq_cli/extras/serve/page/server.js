// Requests to the server, with the token; repeated when it is busy.

import { byId, keep, kept } from "./dom.js";
import { Refusal, say, tell, warn } from "./messages.js";

const MOST_TRIES = 5;
const LONGEST_WAIT = 60; // seconds

let token = kept("token", "");
let asking = null; // promise of the dialog for the token

export const settings = {}; // of the server: charLimit, batchLimit, alternativesLimit, attentionLimit, keyRequired

export async function readSettings() {
  Object.assign(settings, await read("frontend/settings"));
  return read("languages");
}

async function read(path) {
  const response = await fetch(path).catch(lost);
  if (!response.ok) throw refusal(response.status, response.statusText);
  return response.json();
}

/** Return the answer to fields; `sayWait` tells the user about a busy server. */
export function ask(path, fields, signal, sayWait) {
  return withRetries(async () => (await send(path, fields, signal)).json().catch(lost), signal, sayWait);
}

/** Translate a text and return the last answer; `onStart()` is called before every try. */
export function stream(fields, signal, onStart, onSentence) {
  return withRetries(async () => {
    onStart();
    const response = await send("translate", { ...fields, stream: true }, signal);
    for await (const { name, data } of events(response)) {
      signal.throwIfAborted();
      if (name === "error") throw refusal(data.status, data.error, data["Retry-After"]);
      if (name === "done") return data;
      onSentence(data);
    }
    throw new Refusal("offline");
  }, signal);
}

async function withRetries(attempt, signal, sayWait = tell) {
  for (let tries = 1; ; tries++) {
    try {
      return await attempt();
    } catch (error) {
      if (!error.retryAfter || tries === MOST_TRIES) throw error;
      sayWait("waiting", { seconds: error.retryAfter });
      await pause(error.retryAfter, signal);
    }
  }
}

async function send(path, fields, signal) {
  if (lacksToken()) throw new Refusal("tokenNeeded");
  const headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(fields), signal }).catch(lost);
  if (response.ok) return response;
  if (response.status === 403 && (await askForToken("tokenWrong"))) return send(path, fields, signal);
  const { error = response.statusText } = await response.json().catch(() => ({}));
  throw refusal(response.status, error, response.headers.get("Retry-After"));
}

function refusal(status, text, retryAfter) {
  if (status === 429 || status === 503) {
    return new Refusal("busy", {}, Math.min(Number(retryAfter) || 2, LONGEST_WAIT));
  }
  if (status === 403) return new Refusal("tokenNeeded");
  return status < 500 ? new Refusal("refused", { message: text }) : new Refusal("failed", { status });
}

/** A request failed: it was canceled, or the connection was lost. */
function lost(error) {
  throw error.name === "AbortError" ? error : new Refusal("offline");
}

/** Yield server-sent events: a name and a line of JSON. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  while (true) {
    const { value, done } = await reader.read().catch(lost);
    if (done) return;
    const blocks = (text + value).split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const [, name, data] = block.match(/^event: ([^\n]*)\ndata: (.*)$/s);
      yield { name, data: JSON.parse(data) };
    }
  }
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    setTimeout(resolve, 1000 * seconds);
    signal.addEventListener("abort", () => reject(signal.reason));
  });
}

/** Show why a request failed; errors other than Refusal are bugs of this page. */
export function explain(error, again) {
  if (error.name === "AbortError") return;
  if (!(error instanceof Refusal)) throw error;
  if (error.message !== "tokenNeeded") warn(error, "again", again);
  else warn(error, "enterToken", async () => (await askForToken("tokenNeeded")) && again());
}

/** Ask for the token, unless none is needed or the browser has it. */
export async function setUpToken() {
  byId("enter-token").hidden = !settings.keyRequired;
  byId("enter-token").addEventListener("click", () => askForToken("tokenNeeded"));
  if (lacksToken()) await askForToken("tokenNeeded");
}

const lacksToken = () => settings.keyRequired && !token;

/** Ask for the token; resolves to true if one is given. */
function askForToken(reason) {
  asking ??= answerOf(byId("token"), reason).finally(() => { asking = null; });
  return asking;
}

async function answerOf(dialog, reason) {
  say(byId("token-reason"), reason);
  byId("token-field").value = dialog.returnValue = "";
  byId("keep-token").checked = kept("token", "") !== "";
  dialog.showModal();
  await new Promise((resolve) => { dialog.addEventListener("close", resolve, { once: true }); });
  if (dialog.returnValue !== "ok") return false;
  token = byId("token-field").value;
  keep("token", byId("keep-token").checked ? token : "");
  return true;
}
