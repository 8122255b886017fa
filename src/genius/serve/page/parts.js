// What results and the tree of codes are made of. Everything from the index is put in as text, never as markup.

import { showThumbnail } from "/page/api.js";

export const $ = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const { dataset, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  Object.assign(element.dataset, dataset || {});
  element.append(...children);
  return element;
}

const NAMES = { image: "picture", text: "text", pair: "pair" };
export const modalityName = (modality) => NAMES[modality] || modality;

// Neighbouring numbers get colours that are far apart; the same code on one level is always the same colour.
export const hue = (level, code) => Math.round((code * 137.508 + level * 61) % 360);

// What an item is called: its text, or the name that came with it, or its id.
export const nameOf = (item) => item.text || titleOf(item) || item.id;
export function titleOf(item) {
  const title = item.meta?.title ?? item.meta?.name;
  return typeof title === "string" ? title : "";
}

export function openCodes(prefix) { location.hash = `#/codes/${prefix.join(",")}`; }

export function chip(codes, level, modality) {
  const label = level === 0 ? modalityName(modality) : String(codes[level]);
  const button = make("button", { type: "button", className: level ? "chip shared" : "chip first shared", textContent: label });
  button.title = level ? `level ${level}, code ${codes[level]}: see what shares it` : `all of this modality`;
  button.setAttribute("aria-label", `${level ? `code ${codes[level]}` : label}, level ${level}: see what shares it`);
  button.style.setProperty("--hue", hue(level, codes[level]));
  button.addEventListener("click", (event) => { event.stopPropagation(); openCodes(codes.slice(0, level + 1)); });
  return button;
}

export function chips(item) {
  const row = make("div", { className: "chips" }, ...item.codes.map((_, level) => chip(item.codes, level, item.modality)));
  row.setAttribute("role", "group");
  row.setAttribute("aria-label", "Codes");
  return row;
}

export function sharedPrefix(one, other) {
  let length = 0;
  while (length < one.length && one[length] === other[length]) length += 1;
  return length;
}

// Colour the codes of each card that it shares with the item `reference`; the rest steps back. What has another
// modality can be kin: the same codes after it.
export function markShared(cards, reference) {
  $("reference").textContent = reference.rank === 1 ? "the first result" : `result ${reference.rank}`;
  for (const card of cards) {
    const shared = sharedPrefix(card.item.codes, reference.codes);
    const kin = 1 + sharedPrefix(card.item.codes.slice(1), reference.codes.slice(1));
    const row = card.querySelector(".chips");
    row.querySelectorAll(".chip").forEach((one, level) => {
      one.classList.toggle("shared", level < shared);
      one.classList.toggle("kin", !shared && level > 0 && level < kin);
    });
    row.setAttribute("aria-label", `Codes, ${shared} of ${card.item.codes.length} shared with result ${reference.rank}`);
  }
}

export function picture(item, side) {
  const image = make("img", { alt: item.text || titleOf(item) || `picture ${item.id}`, loading: "lazy", decoding: "async" });
  image.addEventListener("error", () => image.parentElement?.classList.add("gone"), { once: true });
  image.addEventListener("load", () => {
    image.classList.toggle("small", Math.max(image.naturalWidth, image.naturalHeight) <= 128);
    image.classList.toggle("paper", onPaper(image));
  }, { once: true });
  showThumbnail(image, item.id, side);
  return image;
}

// Whether a picture has a white border, as product photos and drawings do: it is shown on a white ground.
const GRID = 12;
function onPaper(image) {
  const pen = make("canvas", { width: GRID, height: GRID }).getContext("2d", { willReadFrequently: true });
  pen.drawImage(image, 0, 0, GRID, GRID);
  const { data } = pen.getImageData(0, 0, GRID, GRID);
  let white = 0;
  for (let at = 0; at < GRID * GRID; at += 1) {
    const edge = at < GRID || at >= GRID * (GRID - 1) || at % GRID === 0 || at % GRID === GRID - 1;
    if (edge && Math.min(data[4 * at], data[4 * at + 1], data[4 * at + 2]) > 240) white += 1;
  }
  return white >= 0.6 * 4 * (GRID - 1);
}

// One item as a card; `actions` are buttons, `score` and `rank` are there for hits only.
export function card(item, actions = []) {
  const look = make("button", { type: "button", className: item.image ? "look" : "look words" });
  look.setAttribute("aria-label", `Look at ${nameOf(item)}`);
  look.append(item.image ? picture(item, 384) : make("p", { textContent: item.text || "" }));
  look.classList.toggle("short", (item.text || "").length < 60);
  look.addEventListener("click", () => showDetail(item));
  const about = make("div", { className: "about" });
  const caption = item.image ? item.text || titleOf(item) : "";
  if (caption) about.append(make("p", { className: item.text ? "caption" : "caption told", textContent: caption, title: caption }));
  const line = make("div", { className: "line" }, make("span", { className: "name", textContent: item.id, title: item.id }));
  if (item.score !== undefined) {
    const score = make("span", { className: "score", textContent: item.score.toFixed(3), title: "score" });
    score.setAttribute("aria-label", `score ${item.score.toFixed(3)}`);
    line.append(score);
  }
  about.append(line, chips(item));
  if (actions.length) about.append(make("div", { className: "actions" }, ...actions));
  const element = make("li", { className: "card", tabIndex: -1, dataset: { id: item.id } }, look, about);
  if (item.rank !== undefined) {
    element.prepend(make("span", { className: "rank", textContent: item.rank, ariaHidden: "true" }));
  }
  element.item = item;
  return element;
}

export function showDetail(item) {
  $("detail-title").textContent = titleOf(item) || item.id;
  $("detail-text").textContent = item.text || "";
  $("detail-text").hidden = !item.text;
  const image = $("detail-image");
  image.hidden = !item.image;
  image.removeAttribute("src");
  image.alt = item.text || titleOf(item) || `picture ${item.id}`;
  if (item.image) showThumbnail(image, item.id, 1024);
  $("detail-codes").replaceChildren(chips(item));
  const facts = Object.entries({ id: item.id, modality: modalityName(item.modality), ...item.meta });
  $("detail-meta").replaceChildren(...facts.flatMap(([name, value]) => [
    make("dt", { textContent: name }),
    make("dd", { textContent: typeof value === "string" ? value : JSON.stringify(value) }),
  ]));
  $("detail").showModal();
  $("detail").querySelector("[data-close]").focus(); // not `autofocus`: a page takes that for its own
}

let fading;
export function toast(message) {
  $("toast").textContent = message;
  $("toast").hidden = false;
  clearTimeout(fading);
  fading = setTimeout(() => { $("toast").hidden = true; }, 4000);
}
