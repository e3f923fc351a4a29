"use strict";
// The page of an attention study. Every text of the user becomes a text node or an attribute, never
// markup. A matrix is an array of rows: rows are queries, columns the positions attended to.

const KINDS = {
  encoder: { title: "encoder self-attention", from: "source", to: "source", key: "e" },
  decoder: { title: "decoder self-attention", from: "output", to: "output so far", key: "d" },
  cross: { title: "cross-attention", from: "output", to: "source", key: "c" },
};
const VIEWS = {
  weights: { title: "weights", key: "1" },
  renormalized: { title: "weights without EOS and punctuation", key: "2" },
  norms: { title: "norms of the weighted values ‖α·v‖", key: "3" },
};
const FACTS = {
  head: { title: "head", help: "layer.head" },
  confidence: { title: "confidence", help: "mean of the greatest weight, EOS left out (Voita et al. 2019)" },
  entropy: { title: "entropy", help: "mean entropy of the weights, in nats" },
  offset: { title: "offset", help: "most frequent distance from the query to the greatest weight" },
  offset_share: { title: "at offset", help: "share of the queries at that offset; near 1: a positional head" },
  agreement: { title: "agreement", help: "share of the words aligned as by the layer that aligns best" },
  importance: { title: "importance", help: "increase of the loss, in nats per token, with the head zeroed" },
};
const FONT = '12px system-ui, "Noto Sans", "Noto Sans CJK SC", sans-serif';
const LINE_HEIGHT = 22;

const studies = JSON.parse(document.getElementById("studies").textContent);
// Layers and heads count from 0 here; head null is the mean over the heads of the layer.
const state = { kind: "cross", view: "weights", unit: "tokens", layer: 0, head: 0, sort: "head", descending: false };
const panels = [];

// ---- numbers

async function readNumbers() {
  const text = atob(document.getElementById("numbers").textContent);
  const compressed = Uint8Array.from(text, (character) => character.charCodeAt(0));
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  const maps = studies.flatMap((study) => Object.keys(KINDS).map((kind) => study.maps[kind]));
  let at = 0;
  for (const map of maps) {
    const [layers, heads, rows, columns] = map.shape;
    const size = layers * heads * rows * columns;
    map.roots = new Uint8Array(buffer, at, size); // √weight · 255
    at += size;
  }
  for (const map of maps) {
    const size = map.shape[0] * map.shape[1] * map.shape[3];
    const halves = new Uint16Array(buffer.slice(at, at + 2 * size)); // bfloat16: half of a float32
    map.norms = new Float32Array(Uint32Array.from(halves, (half) => half << 16).buffer);
    at += 2 * size;
  }
}

function weights(map, layer, head) {
  const [, heads, rows, columns] = map.shape;
  let at = (layer * heads + head) * rows * columns;
  return Array.from({ length: rows }, () => {
    const row = new Array(columns);
    for (let memory = 0; memory < columns; memory++) row[memory] = (map.roots[at++] / 255) ** 2;
    return row;
  });
}

function renormalized(matrix, isContent) {
  return matrix.map((row) => {
    const kept = row.map((weight, memory) => weight * isContent[memory]);
    const total = sum(kept);
    return kept.map((weight) => (total > 0 ? weight / total : 0));
  });
}

function betweenWords(matrix, queries, memory) {
  const grouped = zeros(queries.words.length, memory.words.length);
  const sizes = new Array(queries.words.length).fill(0);
  for (const word of queries.word_of_token) sizes[word]++;
  matrix.forEach((row, query) => {
    const word = queries.word_of_token[query];
    row.forEach((value, position) => {
      grouped[word][memory.word_of_token[position]] += value / sizes[word];
    });
  });
  return grouped;
}

function headMatrix(map, layer, head) {
  let matrix = weights(map, layer, head);
  if (state.view === "norms") {
    const start = (layer * map.shape[1] + head) * map.shape[3];
    matrix = matrix.map((row) => row.map((weight, memory) => weight * map.norms[start + memory]));
  } else if (state.view === "renormalized") {
    matrix = renormalized(matrix, map.memory.is_content);
  }
  if (state.unit === "words") matrix = betweenWords(matrix, map.queries, map.memory);
  const shown = shownColumns(map);
  return matrix.map((row) => shown.map((column) => row[column]));
}

function shownColumns(map) {
  const { tokens, words, word_of_token: wordOfToken, is_content: isContent } = map.memory;
  const units = state.unit === "words" ? words : tokens;
  const isShown = new Array(units.length).fill(state.view !== "renormalized");
  isContent.forEach((content, token) => {
    if (content) isShown[state.unit === "words" ? wordOfToken[token] : token] = true;
  });
  return units.map((_, unit) => unit).filter((unit) => isShown[unit]);
}

/** Return the numbers shown of a head, or of the mean over the heads of a layer, with labels. */
function viewed(study, layer, head) {
  const map = study.maps[state.kind];
  const heads = map.shape[1];
  const chosen = head === null ? Array.from({ length: heads }, (_, index) => index) : [head];
  const matrices = chosen.map((index) => headMatrix(map, layer, index));
  const values = matrices[0].map((row, query) =>
    row.map((_, memory) => sum(matrices.map((matrix) => matrix[query][memory])) / chosen.length));
  const labels = (axis) => (state.unit === "words" ? axis.words : axis.tokens);
  return {
    values,
    queries: labels(map.queries),
    memory: shownColumns(map).map((column) => labels(map.memory)[column]),
    top: state.view === "norms" ? greatest(values.flat()) : 1,
  };
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
/** Return the greatest number, above zero, so that it can be divided by. */
const greatest = (numbers) => numbers.reduce((top, number) => Math.max(top, number), 1e-9);
const zeros = (rows, columns) => Array.from({ length: rows }, () => new Array(columns).fill(0));

// ---- colors: even steps of lightness, in OKLCH (lightness, chroma, hue)

const STOPS = {
  light: {
    weights: [[0.985, 0.004, 250], [0.86, 0.065, 235], [0.68, 0.125, 240], [0.48, 0.145, 258], [0.28, 0.1, 268]],
    norms: [[0.985, 0.004, 80], [0.87, 0.08, 78], [0.71, 0.145, 58], [0.51, 0.14, 42], [0.31, 0.085, 35]],
  },
  dark: {
    weights: [[0.24, 0.014, 260], [0.4, 0.1, 265], [0.58, 0.13, 240], [0.78, 0.11, 205], [0.97, 0.05, 120]],
    norms: [[0.24, 0.014, 60], [0.4, 0.085, 35], [0.58, 0.145, 45], [0.78, 0.14, 72], [0.97, 0.05, 100]],
  },
};

/** Return red, green and blue in bytes (Ottosson 2020). */
function fromOklch([lightness, chroma, hue]) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((c) => {
    const clipped = Math.min(1, Math.max(0, c));
    const encoded = clipped <= 0.0031308 ? 12.92 * clipped : 1.055 * clipped ** (1 / 2.4) - 0.055;
    return Math.round(255 * encoded);
  });
}

function scaleOf(theme, view) {
  const stops = STOPS[theme][view === "norms" ? "norms" : "weights"];
  return Array.from({ length: 256 }, (_, step) => {
    const place = (step / 255) * (stops.length - 1);
    const index = Math.min(Math.floor(place), stops.length - 2);
    return fromOklch(stops[index].map((from, n) => from + (place - index) * (stops[index + 1][n] - from)));
  });
}

function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

let scale = []; // the colors of the current theme and view
const shade = (value, top) => scale[Math.round(255 * Math.sqrt(Math.min(1, value / top)))];
const css = (color) => `rgb(${color.join(" ")})`;
/** Black or white, whichever can be read on the color. */
const inkOn = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111" : "#fff");

// ---- elements

function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function graphic(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function number(value) {
  if (value > 0 && value < 0.0005) return "<.001";
  return (value < 0.0995 ? value.toFixed(3) : value.toFixed(2)).replace(/^0(?=\.)/, "");
}

const fixed = (value, digits) => value.toFixed(digits).replace("-", "−");

function section(title, className, ...children) {
  return element("section", { class: className }, element("h3", {}, title), ...children);
}

// ---- panels: a study, and the parts of the page that show it

class Panel {
  constructor(study) {
    this.active = null; // the token whose lines are shown: { side, index }
    this.heading = element("header");
    this.thumbnails = element("div", { class: "thumbnails", role: "group", "aria-label": "Layers and heads" });
    this.heatmap = element("div", { class: "heatmap" });
    this.lines = element("div", { class: "lines" });
    this.predictions = element("div", { class: "scroll", tabindex: 0 });
    this.alignment = element("div");
    this.facts = element("div", { class: "scroll", tabindex: 0 });
    this.factsTitle = element("h3");
    const tools = element("div", { class: "tools" },
      element("button", { type: "button", onclick: () => this.savePng() }, "Save PNG"),
      element("button", { type: "button", onclick: () => this.saveSvg() }, "Save SVG"));
    this.factsSection = element("section", { class: "headfacts wide" }, this.factsTitle, this.facts);
    this.root = element("article", { class: "panel" }, this.heading, element("div", { class: "views" },
      section("Layers and heads", "model", this.thumbnails),
      section("Picked head", "picked", this.heatmap, tools),
      section("Lines between tokens", "sentences", this.lines),
      section("Predictions", "predictions", this.predictions),
      section("Word alignment", "wide", this.alignment),
      this.factsSection));
    this.show(study);
  }

  show(study) {
    this.study = study;
    this.drawHeading();
    this.drawAlignment();
  }

  /** The picks, within what this model has. */
  get layer() { return Math.min(state.layer, this.study.maps[state.kind].shape[0] - 1); }
  get head() {
    return state.head === null ? null : Math.min(state.head, this.study.maps[state.kind].shape[1] - 1);
  }
  get headName() {
    return `layer ${this.layer + 1}, ${this.head === null ? "mean of the heads" : `head ${this.head + 1}`}`;
  }

  drawHeading() {
    const { study } = this;
    const tokens = study.predictions.length;
    const perToken = fixed(study.logProb / tokens, 3);
    const parts = [
      element("h2", { dir: "auto" }, study.run),
      element("p", { class: "source", dir: "auto" }, study.source.text),
      element("p", { class: "target", dir: "auto" }, study.target.text),
      element("p", { class: "facts" },
        `log-probability ${fixed(study.logProb, 3)} nats, ${perToken} per token, ${tokens} tokens`),
    ];
    if (studies.length > 2) parts.unshift(this.picker());
    this.heading.replaceChildren(...parts);
  }

  picker() {
    const options = studies.map((study, index) => {
      const option = element("option", { value: index }, `${index + 1}. ${study.run}: ${study.target.text}`);
      option.selected = study === this.study;
      return option;
    });
    const select = element("select", { "aria-label": "Study" }, ...options);
    select.addEventListener("change", () => {
      this.show(studies[select.value]);
      this.draw();
      this.heading.querySelector("select").focus();
    });
    return select;
  }

  draw() {
    this.active = null;
    this.drawThumbnails();
    this.drawPredictions();
    this.drawTokens();
    this.drawPick();
  }

  /** What depends on the layer and head. */
  drawPick() {
    this.shown = viewed(this.study, this.layer, this.head);
    for (const button of this.thumbnails.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", button.value === pickName(this.layer, this.head));
    }
    this.drawHeatmap();
    this.drawFacts();
    this.drawLines();
  }

  drawThumbnails() {
    const [layers, heads, rows, columns] = this.study.maps[state.kind].shape;
    const hadFocus = this.thumbnails.contains(document.activeElement);
    const width = "minmax(14px, 100px)";
    this.thumbnails.style.gridTemplateColumns = `max-content repeat(${heads}, ${width}) 4px ${width}`;
    const names = [...Array(heads).keys()].map((head) => `${head + 1}`);
    const cells = ["", ...names, "", "mean"].map((name) => element("span", { class: "label" }, name));
    const aspect = Math.min(2, Math.max(0.5, columns / rows));
    for (let layer = 0; layer < layers; layer++) {
      cells.push(element("span", { class: "label" }, `${layer + 1}`));
      for (const head of Array(heads).keys()) cells.push(this.thumbnail(layer, head, aspect));
      cells.push(element("span"), this.thumbnail(layer, null, aspect));
    }
    this.thumbnails.replaceChildren(...cells);
    if (hadFocus) this.focusPick();
  }

  thumbnail(layer, head, aspect) {
    const { values, queries, memory, top } = viewed(this.study, layer, head);
    const canvas = element("canvas", { width: Math.max(1, memory.length), height: queries.length });
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    values.flat().forEach((value, index) => image.data.set([...shade(value, top), 255], 4 * index));
    context.putImageData(image, 0, 0);
    const name = `Layer ${layer + 1}, ${head === null ? "mean of the heads" : `head ${head + 1}`}`;
    const button = element("button", {
      type: "button", value: pickName(layer, head), "aria-label": name, title: name,
      onclick: () => pick({ layer, head }),
    }, canvas);
    button.style.aspectRatio = aspect;
    return button;
  }

  focusPick() {
    this.thumbnails.querySelector(`button[value="${pickName(this.layer, this.head)}"]`)?.focus();
  }

  // ---- the heat map: an SVG that can be saved as it is

  drawHeatmap() {
    const { values, queries, memory, top } = this.shown;
    const ink = theme() === "dark" ? "#dfe3e8" : "#1d2127";
    const paper = theme() === "dark" ? "#1a1d22" : "#ffffff";
    const left = Math.max(...queries.map(widthOf)) + 10;
    const room = [(this.heatmap.clientWidth - left - 30) / Math.max(memory.length, 1), 540 / queries.length];
    const cell = Math.max(11, Math.min(34, ...room.map(Math.floor)));
    const header = Math.max(30, ...memory.map(widthOf)) * 0.87 + 34;
    const overhang = memory.length ? widthOf(memory[memory.length - 1]) * 0.5 : 0;
    const [columnsWidth, height] = [memory.length * cell, queries.length * cell];
    const width = Math.ceil(Math.max(left + columnsWidth + overhang + 12, left + 300));
    const plot = graphic("g", { transform: `translate(${left} ${header})` });
    plot.append(graphic("rect", { width: columnsWidth, height, fill: css(shade(0, 1)) }));
    values.forEach((row, query) => row.forEach((value, memoryIndex) => {
      if (value > 0) plot.append(...cellOf(value, top, memoryIndex * cell, query * cell, cell));
    }));
    const text = (label, attributes) => graphic("text", { fill: ink, ...attributes }, label);
    queries.forEach((label, query) => plot.append(
      text(clipped(label), { x: -6, y: (query + 0.5) * cell + 4, "text-anchor": "end", "data-query": query })));
    memory.forEach((label, column) => plot.append(text(clipped(label), {
      transform: `translate(${(column + 0.5) * cell + 4} -6) rotate(-60)`, "data-memory": column,
    })));
    const title = `${KINDS[state.kind].title}, ${this.headName}`;
    const svg = graphic("svg", {
      xmlns: "http://www.w3.org/2000/svg", width, height: header + height + 52,
      viewBox: `0 0 ${width} ${header + height + 52}`, role: "img", "aria-label": title,
    }, graphic("rect", { width: "100%", height: "100%", fill: paper }),
    graphic("g", { "font-size": 12, "font-family": FONT.slice(5) },
      text(title, { y: 14, "font-weight": 600 }), plot, legend(left, header + height + 14, top, ink)));
    plot.addEventListener("pointermove", (event) => this.point(event, plot, cell));
    plot.addEventListener("pointerleave", () => { this.activate(null); tooltip(null); });
    this.heatmap.replaceChildren(svg);
  }

  /** Describe the cell under the pointer, and show the lines of its query. */
  point(event, plot, cell) {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(plot.getScreenCTM().inverse());
    const [memory, query] = [Math.floor(at.x / cell), Math.floor(at.y / cell)];
    const value = this.shown.values[query]?.[memory];
    if (value === undefined) return;
    const unit = state.view === "norms" ? "norm" : "weight";
    tooltip(event, `${this.shown.queries[query]} → ${this.shown.memory[memory]}: ${unit} ${number(value)}`);
    this.activate({ side: "query", index: query });
  }

  saveSvg() {
    const text = new XMLSerializer().serializeToString(this.heatmap.firstChild);
    this.save(new Blob([text], { type: "image/svg+xml" }), "svg");
  }

  async savePng() {
    const svg = this.heatmap.firstChild;
    const image = new Image();
    image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(svg))}`;
    await image.decode();
    const factor = 3; // for print
    const canvas = element("canvas", {
      width: factor * svg.width.baseVal.value, height: factor * svg.height.baseVal.value,
    });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => this.save(blob, "png"), "image/png");
  }

  save(blob, suffix) {
    const head = this.head === null ? "mean" : `head${this.head + 1}`;
    const name = `attention-${state.kind}-layer${this.layer + 1}-${head}.${suffix}`;
    const link = element("a", { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  // ---- both sentences, with lines between their tokens

  drawTokens() {
    const { queries, memory } = viewed(this.study, this.layer, this.head);
    const list = (labels, side) => element("ol", { class: side }, ...labels.map((label, index) => element("li", {},
      element("button", {
        type: "button", class: "token", dir: "auto", title: label, "data-side": side, "data-index": index,
        onpointerenter: () => this.activate({ side, index }), onpointerleave: () => this.activate(null),
        onfocus: () => this.activate({ side, index }), onblur: () => this.activate(null),
      }, label))));
    this.svg = graphic("svg", { height: LINE_HEIGHT * Math.max(queries.length, memory.length), "aria-hidden": true });
    const { from, to } = KINDS[state.kind];
    this.lines.replaceChildren(
      element("h4", { class: "query" }, `${from} attends to →`), element("span"), element("h4", {}, to),
      list(queries, "query"), this.svg, list(memory, "memory"));
  }

  activate(active) {
    this.active = active;
    this.drawLines();
  }

  drawLines() {
    const { values, top } = this.shown;
    const width = this.svg.clientWidth || 160;
    const chosen = this.active;
    const paths = [];
    values.forEach((row, query) => row.forEach((value, memory) => {
      const isChosen = chosen && chosen.index === (chosen.side === "query" ? query : memory);
      const strength = Math.min(1, value / top);
      if (strength < 0.01 || (chosen && !isChosen)) return;
      const [y, end] = [(query + 0.5) * LINE_HEIGHT - 1, (memory + 0.5) * LINE_HEIGHT - 1];
      paths.push(graphic("path", {
        d: `M0 ${y} C${width / 2} ${y} ${width / 2} ${end} ${width} ${end}`,
        fill: "none", "stroke-opacity": (chosen ? strength : 0.7 * strength).toFixed(3),
        stroke: css(scale[176]), "stroke-width": (0.8 + 2.4 * strength).toFixed(2), "data-query": query, "data-memory": memory,
      }));
    }));
    this.svg.replaceChildren(...paths);
    for (const token of this.lines.querySelectorAll(".token")) this.markToken(token);
    for (const label of this.heatmap.querySelectorAll("text[data-query], text[data-memory]")) {
      const isChosen = chosen && label.dataset[chosen.side] === `${chosen.index}`;
      if (isChosen) label.setAttribute("font-weight", 700);
      else label.removeAttribute("font-weight");
    }
  }

  /** Shade a token by its weight for the active token of the other side. */
  markToken(token) {
    const { side, index } = token.dataset;
    const { active } = this;
    token.classList.toggle("active", active?.side === side && active.index === Number(index));
    let [background, ink] = ["", ""];
    token.title = token.textContent;
    if (active && active.side !== side) {
      const value = side === "memory" ? this.shown.values[active.index][index] : this.shown.values[index][active.index];
      const color = shade(value, this.shown.top);
      [background, ink] = [css(color), inkOn(color)];
      token.title += `: ${number(value)}`;
    }
    token.style.background = background;
    token.style.color = ink;
  }

  // ---- tables

  drawPredictions() {
    const rows = predictedUnits(this.study).map((unit) => element("tr", {},
      element("td", { dir: "auto" }, unit.label),
      element("td", { class: "number" }, bar(unit.probability), fixed(unit.probability, 3)),
      element("td", { class: "number" }, fixed(unit.entropy, 2)),
      element("td", {}, ...(unit.of === undefined ? [] : [element("span", { class: "of" }, `${unit.of}: `)]),
        ...unit.alternatives.map(([token, probability]) => element("span", { class: "alternative" },
          element("bdi", {}, token), " ", element("small", {}, number(probability)))))));
    const titles = [
      ["output", "The output, predicted from the source and the output before it", ""],
      ["probability", "Probability under the model", "number"],
      ["entropy", "Entropy of the distribution, in nats", "number"],
      ["alternatives", "The five most probable other tokens", ""],
    ];
    const header = titles.map(([title, help, className]) => element("th", { title: help, class: className }, title));
    this.predictions.replaceChildren(
      element("table", {}, element("thead", {}, element("tr", {}, ...header)), element("tbody", {}, ...rows)));
  }

  drawFacts() {
    const facts = this.study.headStatistics[state.kind];
    this.factsSection.hidden = !facts;
    if (!facts) return;
    this.factsTitle.replaceChildren(`Heads on the validation text: ${KINDS[state.kind].title}`);
    const columns = Object.keys(FACTS).filter((name) => name === "head" || facts[name]);
    const rows = facts.confidence.flatMap((layer, l) => layer.map((_, h) => ({ layer: l, head: h })));
    const valueOf = (name, row) => name === "head" ? row.layer * 1e4 + row.head : facts[name][row.layer][row.head];
    const sort = columns.includes(state.sort) ? state.sort : "head";
    rows.sort((a, b) => (valueOf(sort, a) - valueOf(sort, b)) * (state.descending ? -1 : 1));
    const header = columns.map((name) => element("th", {
      class: "number", title: FACTS[name].help,
      "aria-sort": sort !== name ? undefined : state.descending ? "descending" : "ascending",
    }, element("button", { type: "button", "data-sort": name, onclick: () => sortBy(name) },
      FACTS[name].title + (sort !== name ? "" : state.descending ? " ↓" : " ↑"))));
    const body = rows.map((row) => element("tr", {
      "aria-selected": row.layer === this.layer && row.head === this.head,
      "data-pick": pickName(row.layer, row.head), onclick: () => pick(row),
    }, ...columns.map((name) => element("td", { class: "number" }, ...this.fact(facts, name, row)))));
    const scrolled = this.facts.scrollTop;
    const focused = this.facts.contains(document.activeElement) && document.activeElement.dataset.sort;
    this.facts.replaceChildren(
      element("table", {}, element("thead", {}, element("tr", {}, ...header)), element("tbody", {}, ...body)));
    this.facts.scrollTop = scrolled;
    if (focused) this.facts.querySelector(`[data-sort="${focused}"]`).focus();
  }

  fact(facts, name, { layer, head }) {
    if (name === "head") return [`${layer + 1}.${head + 1}`];
    const value = facts[name][layer][head];
    if (name === "offset") return [value > 0 ? `+${value}` : fixed(value, 0)];
    const top = name === "entropy" || name === "importance" ? greatest(facts[name].flat()) : 1;
    return [bar(Math.max(0, value / top)), fixed(value, name === "importance" ? 4 : 2)];
  }

  drawAlignment() {
    const { source, target, alignment } = this.study;
    const pairs = target.words.map((word, index) => element("span", {},
      element("bdi", {}, word),
      element("bdi", { class: "of" },
        alignment.filter(([, to]) => to === index).map(([from]) => source.words[from]).join(" ") || "–")));
    const pharaoh = alignment.map(([from, to]) => `${from}-${to}`).join(" ");
    this.alignment.replaceChildren(
      element("div", { class: "gloss", dir: "auto" }, ...pairs),
      element("p", { class: "pharaoh", title: "Source word - output word, counted from 0 (Pharaoh)" }, pharaoh));
  }
}

const pickName = (layer, head) => `${layer}.${head === null ? "mean" : head}`;

function bar(share) {
  const filling = element("i");
  filling.style.width = `${100 * Math.min(1, share)}%`;
  return element("span", { class: "bar" }, filling);
}

/** Return the predictions of tokens, or of words: see "Keys and numbers" on the page. */
function predictedUnits({ predictions, maps }) {
  if (state.unit === "tokens") return predictions.map((one) => ({ ...one, label: one.token }));
  const { words, word_of_token: wordOfToken } = maps.decoder.queries;
  return words.map((label, word) => {
    const own = predictions.filter((_, token) => wordOfToken[token] === word);
    const weakest = own.reduce((a, b) => (b.probability < a.probability ? b : a));
    return {
      label,
      probability: own.reduce((product, one) => product * one.probability, 1),
      entropy: sum(own.map((one) => one.entropy)),
      alternatives: weakest.alternatives,
      of: own.length > 1 ? weakest.token : undefined,
    };
  });
}

const measuring = document.createElement("canvas").getContext("2d");
measuring.font = FONT;
const clipped = (label) => ([...label].length > 24 ? `${[...label].slice(0, 23).join("")}…` : label);
const widthOf = (label) => measuring.measureText(clipped(label)).width;

function cellOf(value, top, x, y, size) {
  const color = shade(value, top);
  const cell = graphic("rect", { x, y, width: size, height: size, fill: css(color) });
  if (size < 28 || value / top < 0.01) return [cell];
  const text = { x: x + size / 2, y: y + size / 2 + 4, "text-anchor": "middle", "font-size": 10, fill: inkOn(color) };
  return [cell, graphic("text", text, value.toFixed(2).replace(/^0(?=\.)/, ""))];
}

function legend(x, y, top, ink) {
  const [width, steps] = [200, 50];
  const group = graphic("g", { transform: `translate(${x} ${y})`, "font-size": 10 });
  for (let step = 0; step < steps; step++) {
    const fill = css(scale[Math.round((255 * step) / (steps - 1))]);
    group.append(graphic("rect", { x: (width / steps) * step, width: width / steps + 0.5, height: 8, fill }));
  }
  for (const share of [0, 0.05, 0.25, 0.5, 1]) {
    const place = { x: width * Math.sqrt(share), y: 20, fill: ink, "text-anchor": "middle" };
    group.append(graphic("text", place, `${Number((share * top).toPrecision(2))}`));
  }
  group.append(graphic("text", { y: 33, fill: ink }, VIEWS[state.view].title));
  return group;
}

function tooltip(event, text) {
  const box = document.getElementById("tooltip");
  box.hidden = event === null;
  if (event === null) return;
  box.textContent = text;
  box.style.left = `${Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8)}px`;
  box.style.top = `${Math.min(event.clientY + 16, innerHeight - box.offsetHeight - 8)}px`;
}

// ---- picks and options, shared by all panels

function pick(change) {
  Object.assign(state, change);
  for (const panel of panels) {
    const hadFocus = panel.thumbnails.contains(document.activeElement);
    panel.drawPick();
    if (hadFocus) panel.focusPick();
  }
}

function sortBy(name) {
  state.descending = state.sort === name ? !state.descending : name !== "head";
  state.sort = name;
  for (const panel of panels) panel.drawFacts();
}

function choose(change) {
  Object.assign(state, change);
  const [layers, heads] = extent();
  state.layer = Math.min(state.layer, layers - 1);
  if (state.head !== null) state.head = Math.min(state.head, heads - 1);
  for (const group of document.querySelectorAll("[data-option]")) {
    for (const button of group.children) {
      button.setAttribute("aria-pressed", state[group.dataset.option] === button.value);
    }
  }
  scale = scaleOf(theme(), state.view);
  for (const panel of panels) panel.draw();
}

/** Layers and heads of the largest model that is shown. */
function extent() {
  const shapes = panels.map((panel) => panel.study.maps[state.kind].shape);
  return [Math.max(...shapes.map((shape) => shape[0])), Math.max(...shapes.map((shape) => shape[1]))];
}

function switchTheme() {
  document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark";
  choose({});
}

function moveHead(step) {
  const [, heads] = extent();
  const column = Math.max(0, Math.min(heads, (state.head ?? heads) + step));
  pick({ head: column === heads ? null : column });
}

function moveLayer(step) {
  pick({ layer: Math.max(0, Math.min(extent()[0] - 1, state.layer + step)) });
}

let headBeforeMean = 0;
function switchMean() {
  if (state.head !== null) headBeforeMean = state.head;
  pick({ head: state.head === null ? headBeforeMean : null });
}

const KEYS = {
  ArrowLeft: () => moveHead(-1),
  ArrowRight: () => moveHead(1),
  ArrowUp: () => moveLayer(-1),
  ArrowDown: () => moveLayer(1),
  m: switchMean,
  s: () => choose({ unit: "tokens" }),
  w: () => choose({ unit: "words" }),
  t: switchTheme,
  "?": () => {
    const help = document.getElementById("help");
    help.toggleAttribute("open");
    if (help.open) help.scrollIntoView({ block: "nearest" });
  },
};
for (const [kind, { key }] of Object.entries(KINDS)) KEYS[key] = () => choose({ kind });
for (const [view, { key }] of Object.entries(VIEWS)) KEYS[key] = () => choose({ view });

function listen() {
  document.addEventListener("keydown", (event) => {
    const isTaken = event.ctrlKey || event.altKey || event.metaKey || event.target.matches("select");
    if (isTaken || !Object.hasOwn(KEYS, event.key)) return;
    event.preventDefault();
    KEYS[event.key]();
  });
  for (const group of document.querySelectorAll("[data-option]")) {
    for (const button of group.children) {
      button.addEventListener("click", () => choose({ [group.dataset.option]: button.value }));
    }
  }
  document.getElementById("theme").addEventListener("click", switchTheme);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => choose({}));
  addEventListener("resize", () => panels.forEach((panel) => panel.drawPick()));
  let before;
  addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    choose({});
  });
  addEventListener("afterprint", () => {
    if (before) document.documentElement.dataset.theme = before;
    else delete document.documentElement.dataset.theme;
    choose({});
  });
}

async function start() {
  await readNumbers();
  panels.push(...studies.slice(0, 2).map((study) => new Panel(study)));
  document.getElementById("panels").append(...panels.map((panel) => panel.root));
  listen();
  choose({});
}

// For scripts and tests: when the page is drawn, and the numbers that a panel shows.
window.attentionPage = { ready: start(), state, matrix: (panel = 0) => panels[panel].shown };
