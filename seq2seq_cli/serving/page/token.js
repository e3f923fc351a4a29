// The token of a server that asks for one.

import { byId, keep, kept } from "./dom.js";
import { say } from "./messages.js";

let token = kept("token", "");
let isNeeded = false;
let asking = null; // the dialog that is open, whoever waits for it

/** Ask for the token of a server that needs one, unless the browser has it. */
export async function setUpToken(keyRequired) {
  isNeeded = keyRequired;
  const change = byId("change-token");
  change.hidden = !isNeeded;
  change.addEventListener("click", () => askForToken("tokenNeeded"));
  if (lacksToken()) await askForToken("tokenNeeded");
}

export const lacksToken = () => isNeeded && !token;
export const authorization = () => (token ? { Authorization: `Bearer ${token}` } : {});

/** Ask for the token; resolves to true if one is given. */
export function askForToken(reason) {
  asking ??= answer(reason).finally(() => { asking = null; });
  return asking;
}

async function answer(reason) {
  const dialog = byId("token");
  say(byId("token-reason"), reason);
  byId("token-field").value = "";
  byId("keep-token").checked = kept("token", "") !== "";
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise((resolve) => { dialog.addEventListener("close", resolve, { once: true }); });
  if (dialog.returnValue !== "ok") return false;
  token = byId("token-field").value;
  keep("token", byId("keep-token").checked ? token : null);
  return true;
}
