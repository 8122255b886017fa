// What a card says of its item: the name, how sure the answer is, codes, and the metadata that its reader chooses.

import { $, chips, make } from "/page/parts.js";

const SAVED = "genius-fields";
const OWN = { name: "Name", sure: "How sure", codes: "Codes" }; // these are not metadata
const MENU = 30; // fields to choose from
let shown = load();
let known = []; // metadata fields of the collection, in the order in which they were met
let redraw = () => {};

function load() {
  try {
    const saved = JSON.parse(localStorage.getItem(SAVED));
    if (Array.isArray(saved)) return new Set(saved);
  } catch { /* not ours */ }
  return new Set(["own:name", "own:sure"]);
}

export const shows = (own) => shown.has(`own:${own}`);

// The values of an item that can be shown in a line.
const isPlain = (value) => ["string", "number", "boolean"].includes(typeof value);
export function written(value) {
  if (typeof value === "number") return value.toLocaleString(undefined, { maximumFractionDigits: 4, useGrouping: value >= 10_000 });
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value) && value.every(isPlain)) return value.map(written).join(", ");
  return typeof value === "string" ? value : JSON.stringify(value);
}

// Ids of pictures are mostly paths, of which the end tells most.
export const shortId = (item) => (item.image ? item.id.replace(/^.*\/(?=.)/, "") : item.id);

export const percent = (confidence) => `${confidence < 0.1 ? (100 * confidence).toFixed(1) : Math.round(100 * confidence)} %`;

// The line with name and confidence, chosen metadata, and the codes where they are wanted.
export function about(item) {
  const parts = [];
  const line = make("div", { className: "line" });
  if (shows("name")) line.append(make("span", { className: "name", textContent: shortId(item), title: item.id }));
  if (shows("sure") && typeof item.confidence === "number") {
    const sure = make("span", { className: "sure", textContent: percent(item.confidence) });
    sure.title = `Of answers like this one, about ${percent(item.confidence)} are right`;
    line.append(sure);
  }
  if (line.children.length) parts.push(line);
  const facts = known.filter((field) => shown.has(field) && item.meta[field] !== undefined && item.meta[field] !== null);
  if (facts.length) {
    parts.push(make("dl", { className: "facts" }, ...facts.flatMap((field) => [
      make("dt", { textContent: field }), make("dd", { textContent: written(item.meta[field]), title: written(item.meta[field]) }),
    ])));
  }
  if (shows("codes")) parts.push(chips(item));
  return parts;
}

// Learn which fields there are from items that were found.
export function learn(items) {
  const before = known.length;
  for (const item of items) for (const field of Object.keys(item.meta)) if (!known.includes(field)) known.push(field);
  if (known.length > before || !$("show-list").children.length) showMenu();
  return known;
}

function choice(name, text) {
  const box = make("input", { type: "checkbox", checked: shown.has(name) });
  box.addEventListener("change", () => {
    if (box.checked) shown.add(name); else shown.delete(name);
    localStorage.setItem(SAVED, JSON.stringify([...shown]));
    redraw();
  });
  return make("label", {}, box, make("span", { textContent: text }));
}

function showMenu() {
  const own = Object.entries(OWN).map(([name, text]) => choice(`own:${name}`, text));
  $("show-list").replaceChildren(...own, ...known.slice(0, MENU).map((field) => choice(field, field)));
}

export function start(changed) { redraw = changed; showMenu(); }
