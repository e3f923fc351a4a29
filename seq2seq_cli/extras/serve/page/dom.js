// Elements of the page, and local storage. Text becomes text nodes, never markup.

export const byId = (id) => document.getElementById(id);

/** Make an element; attributes that begin with "on" are listeners. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

const PREFIX = "seq2seq."; // other programs on the same host and port may use the storage too

/** Return a stored value, or a default. */
export function kept(name, byDefault) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name)) ?? byDefault;
  } catch {
    return byDefault;
  }
}

/** Call `changed` when another tab has stored a value. */
export function onStored(name, changed) {
  addEventListener("storage", ({ key }) => {
    if (key === PREFIX + name) changed();
  });
}

/** Store a value, if the browser allows it: private windows may not. */
export function keep(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {}
}
