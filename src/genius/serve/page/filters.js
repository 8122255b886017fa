// Filters of a search: values of metadata fields to choose from (facets), ranges of numbers and dates, words that must
// be there.
// They become one `where` of the API, such as: "category" in ('sofa', 'chair') and "price" <= 50

import { written } from "/page/fields.js";
import { $, button, make, modalityName } from "/page/parts.js";

const FIELDS = 16; // the server counts no more in one search
const VALUES = 12; // of one field, at first
let chosen = {}; // field -> { in: [values] } or { from, to }
const ranges = new Map(); // fields that are narrowed down by from and to: "number" or "date"
let changed = () => {};

// --- the filter as text ----------------------------------------------------------------------------------

const quoted = (value) => (typeof value === "string" ? `'${value.replaceAll("'", "''")}'` : String(value));
const BUILT_IN = { modality: "kind", folder: "folder", date: "date" }; // of every item, not of its metadata
const fieldName = (field) => (field in BUILT_IN ? field : `"${field}"`);
const shownName = (field) => BUILT_IN[field] || field;

export function where() {
  const tests = Object.entries(chosen).flatMap(([field, test]) => {
    const name = fieldName(field);
    if (test.in) return [`${name} in (${test.in.map(quoted).join(", ")})`];
    const ends = [];
    if (test.from !== undefined) ends.push(`${name} >= ${quoted(test.from)}`);
    if (test.to !== undefined) ends.push(`${name} <= ${quoted(isDay(test.to) ? `${test.to}T99` : test.to)}`); // the whole day
    return ends;
  });
  const own = $("where").value.trim();
  if (own) tests.push(tests.length ? `(${own})` : own);
  return tests.join(" and ");
}

// What the address keeps of the filters, and back.
export function saved() {
  return { filters: Object.keys(chosen).length ? JSON.stringify(chosen) : "", has: match(), where: $("where").value.trim() };
}

export function restore(parameters) {
  chosen = {};
  try {
    for (const [field, test] of Object.entries(JSON.parse(parameters.get("filters") || "{}"))) {
      if (Array.isArray(test.in)) chosen[field] = test;
      else if ([test.from, test.to].every((end) => end === undefined || Number.isFinite(end) || isDay(end))) {
        chosen[field] = test;
        ranges.set(field, isDay(test.from ?? test.to) ? "date" : "number");
      }
    }
  } catch { /* an address that somebody has cut */ }
  $("contains").value = parameters.get("has") || "";
  $("where").value = parameters.get("where") || "";
}

export function clear() {
  restore(new URLSearchParams());
  changed();
}

// The words that must be there.
export const match = () => $("contains").value.trim();

export const any = () => where() !== "" || match() !== "";

// --- facets ----------------------------------------------------------------------------------------------

// The fields to count: those of the collection, as far as the filter grammar can name them.
export function facetFields(known) {
  const named = known.filter((field) => field && !(field in BUILT_IN) && !/[,"]/.test(field));
  return [...Object.keys(BUILT_IN), ...named].slice(0, FIELDS).map(fieldName);
}

const plainName = (counted) => counted.replace(/^"|"$/g, "");
const shownValue = (field, value) => (field === "modality" ? modalityName(value) : written(value));

// Show what the answers can be narrowed down by. A field in which nearly every answer differs is none, unless its
// values are numbers: then from and to are asked for.
export function show(facets = {}) {
  const open = document.querySelector("#facets details[open]")?.dataset.field;
  const held = $("facets").contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const menus = [];
  for (const [counted, counts] of Object.entries(facets)) {
    const field = plainName(counted);
    const total = counts.reduce((sum, one) => sum + one.count, 0);
    const differ = 2 * counts.length > total + 2; // a name or a measure rather than a kind
    const kind = kindOf(counts.map((one) => one.value));
    if (kind === "date" || (kind && (differ || counts.length > VALUES))) ranges.set(field, kind);
    if (!chosen[field] && (counts.length < 2 || (differ && !ranges.has(field)))) continue;
    menus.push(menu(field, ranges.has(field) && !chosen[field]?.in ? rangePanel(field) : valuesPanel(field, counts)));
  }
  $("facets").replaceChildren(...menus);
  const again = [...$("facets").children].find((one) => one.dataset.field === open);
  if (again) again.open = true;
  [...$("facets").querySelectorAll("[data-key]")].find((one) => one.dataset.key === held)?.focus();
  showChosen();
}

// What values are, where they have an order that people know; tables may have numbers as texts.
const isDay = (value) => /^\d{4}-\d\d-\d\d$/.test(value);
const isNumber = (value) => typeof value === "number" || (typeof value === "string" && value.trim() !== "" && Number.isFinite(Number(value)));
function kindOf(values) {
  if (values.length && values.every(isNumber)) return "number";
  return values.length && values.every((value) => /^\d{4}-\d\d/.test(value)) ? "date" : null;
}

function menu(field, panel) {
  return make("details", { className: "menu", dataset: { field } }, make("summary", { textContent: shownName(field), dataset: { key: field } }), panel);
}

function valuesPanel(field, counts) {
  const on = chosen[field]?.in || [];
  const all = [...on.filter((value) => !counts.some((one) => one.value === value)).map((value) => ({ value })), ...counts];
  const panel = make("div", { className: "panel" });
  const draw = (many) => {
    panel.replaceChildren(...all.slice(0, many).map(({ value, count }) => {
      const box = make("input", { type: "checkbox", checked: on.includes(value), dataset: { key: `${field} ${JSON.stringify(value)}` } });
      box.addEventListener("change", () => choose(field, box.checked ? [...on, value] : on.filter((one) => one !== value)));
      return make("label", {}, box, make("span", { textContent: shownValue(field, value) }), make("small", { textContent: count ?? "" }));
    }));
    if (all.length > many) panel.append(button(`All ${all.length}`, { className: "plain" }, () => draw(all.length)));
  };
  draw(VALUES);
  return panel;
}

function choose(field, values) {
  if (values.length) chosen[field] = { in: values }; else delete chosen[field];
  changed();
}

function rangePanel(field) {
  const ends = ["from", "to"].map((end) => {
    const input = make("input", { type: ranges.get(field), step: "any", value: chosen[field]?.[end] ?? "", dataset: { end, key: `${field} ${end}` } });
    input.addEventListener("change", () => setRange(field, ends));
    return input;
  });
  return make("div", { className: "panel range" }, make("label", {}, "from", ends[0]), make("label", {}, "to", ends[1]));
}

function setRange(field, ends) {
  const test = {};
  for (const input of ends) if (input.value !== "") test[input.dataset.end] = input.type === "date" ? input.value : Number(input.value);
  if (Object.keys(test).length) chosen[field] = test; else delete chosen[field];
  changed();
}

// The chosen filters, each with a way to take it back.
function showChosen() {
  const chips = Object.entries(chosen).flatMap(([field, test]) => {
    const name = shownName(field);
    if (test.in) return test.in.map((value) => [`${name}: ${shownValue(field, value)}`, () => choose(field, test.in.filter((one) => one !== value))]);
    const text = [test.from !== undefined && `from ${test.from}`, test.to !== undefined && `to ${test.to}`].filter(Boolean).join(" ");
    return [[`${name} ${text}`, () => choose(field, [])]];
  });
  if (match()) chips.push([`contains “${match()}”`, () => { $("contains").value = ""; changed(); }]);
  const own = $("where").value.trim();
  if (own) chips.push([own, () => { $("where").value = ""; changed(); }]);
  $("chosen").replaceChildren(...chips.map(([text, off]) => {
    const one = button(text, { className: "facet", label: `Without the filter ${text}` }, off);
    one.append(make("span", { textContent: "×", ariaHidden: "true" }));
    return one;
  }));
  $("chosen").hidden = !chips.length;
}

export function start(filtersChanged) {
  changed = filtersChanged;
  for (const id of ["contains", "where"]) $(id).addEventListener("change", () => changed());
}
