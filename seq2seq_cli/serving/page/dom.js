// Elements of the page, and what the browser keeps for it. Text becomes text nodes, never markup.

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

// Another program on the same host and port may keep things too.
const PREFIX = "seq2seq.";

/** Return what was kept under a name; browsers that keep nothing have the default. */
export function kept(name, byDefault) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name)) ?? byDefault;
  } catch {
    return byDefault;
  }
}

/** Keep a value, if the browser lets us; null forgets it. */
export function keep(name, value) {
  try {
    if (value === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // Private windows and full disks keep nothing, and the page works without.
  }
}
