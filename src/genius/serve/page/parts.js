// Small parts that all views are made of. Everything from the index is put in as text, never as markup.

import { showThumbnail } from "/page/api.js";

export const $ = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const { dataset, label, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  Object.assign(element.dataset, dataset || {});
  if (label) element.setAttribute("aria-label", label);
  element.append(...children);
  return element;
}

export function button(text, properties, pressed) {
  const element = make("button", { type: "button", ...properties }, text);
  element.addEventListener("click", pressed);
  return element;
}

const NAMES = { image: "picture", text: "text", pair: "pair" };
export const modalityName = (modality) => NAMES[modality] || modality;
export const countOf = (count, one, many = `${one}s`) => `${count.toLocaleString()} ${count === 1 ? one : many}`;

// What an item is called: its text, or the name that came with it, or its id.
export const nameOf = (item) => item.text || titleOf(item) || item.id;
// What is before, in and after the passage of a text that was found; a span counts whole characters.
export function textAround(item) {
  if (!item.span) return ["", item.text || "", ""];
  const letters = [...item.text], [start, end] = item.span;
  return [letters.slice(0, start), letters.slice(start, end), letters.slice(end)].map((part) => part.join(""));
}
export const passageOf = (item) => textAround(item)[1];
export function titleOf(item) {
  const title = item.meta?.title ?? item.meta?.name;
  return typeof title === "string" ? title : "";
}

// Neighbouring numbers get colours that are far apart; the same code on one level is always the same colour.
export const hue = (level, code) => Math.round((code * 137.508 + level * 61) % 360);

export function openCodes(prefix) { location.hash = `#/codes/${prefix.join(",")}`; }

function chip(codes, level, modality) {
  const label = level === 0 ? modalityName(modality) : String(codes[level]);
  const one = button(label, {
    className: level ? "chip shared" : "chip first shared",
    title: level ? `level ${level}, code ${codes[level]}: see what shares it` : "all of this modality",
    label: `${level ? `code ${codes[level]}` : label}, level ${level}: see what shares it`,
  }, () => openCodes(codes.slice(0, level + 1)));
  one.style.setProperty("--hue", hue(level, codes[level]));
  return one;
}

export function chips(item) {
  const row = make("div", { className: "chips", label: "Codes" }, ...item.codes.map((_, level) => chip(item.codes, level, item.modality)));
  row.setAttribute("role", "group");
  return row;
}

export function picture(item, side) {
  const image = make("img", { alt: item.text || titleOf(item) || `picture ${item.id}`, loading: "lazy", decoding: "async" });
  image.addEventListener("error", () => image.parentElement?.classList.add("gone"));
  image.addEventListener("load", () => {
    image.parentElement?.classList.remove("gone");
    image.classList.toggle("small", Math.max(image.naturalWidth, image.naturalHeight) <= 128);
    image.classList.toggle("paper", onPaper(image));
  });
  image.load = () => showThumbnail(image, item.id, side);
  image.load();
  return image;
}

// Try pictures again that did not come, once the server is back.
export function reloadPictures() {
  document.querySelectorAll(".gone img").forEach((image) => image.load?.());
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

// Files that can be searched with or added. Some systems give the newer formats no type, so their endings count, too.
const ENDINGS = /\.(avif|bmp|gif|hei[cf]|jfif|jp2|jpe?g|png|tiff?|webp)$/i;
export const isPicture = (file) => file.type.startsWith("image/") || ENDINGS.test(file.name);
export const noPicture = (file) => `“${file.name || "That"}” is not a picture. Use a JPEG, PNG, WebP, GIF, TIFF, AVIF or HEIC file.`;

let fading;
export function toast(message) {
  $("toast").textContent = message;
  $("toast").hidden = false;
  clearTimeout(fading);
  fading = setTimeout(() => { $("toast").hidden = true; }, 3000 + 50 * message.length);
}
