// One item in large: its picture and text, everything known of it, and the way to the one before and after it.

import * as api from "/page/api.js";
import { percent, shortId, written } from "/page/fields.js";
import { $, button, chips, make, modalityName, textAround, titleOf } from "/page/parts.js";

let place = null; // { items: () => items, at, more: () => whether more came, or undefined }
let showing = null; // the item

// Look at one of `items()`; `more` gets the next ones when the last is passed.
export function open(items, item, more) {
  place = { items, at: items().indexOf(item), more };
  show(item);
  if (!$("detail").open) $("detail").showModal();
  $("detail-close").focus(); // not `autofocus`: a page takes that for its own
}

async function step(by) {
  let next = place.items()[place.at + by];
  if (!next && by > 0 && place.more) {
    $("detail-next").disabled = true;
    await place.more();
    next = place.items()[place.at + by];
  }
  if (next && $("detail").open) {
    place.at += by;
    show(next);
  } else sayPlace();
}

function sayPlace() {
  const count = place.items().length;
  const atEnd = place.at + 1 >= count && !place.more?.left();
  $("detail-place").textContent = count > 1 ? `${place.at + 1} of ${count}` : "";
  for (const [id, off] of [["detail-before", place.at <= 0], ["detail-next", atEnd]]) {
    if (off && document.activeElement === $(id)) $("detail-close").focus();
    $(id).disabled = off;
    $(id).hidden = count < 2 && off;
  }
}

function show(item) {
  showing = item;
  $("detail-title").textContent = titleOf(item) || shortId(item);
  const [before, found, after] = textAround(item);
  $("detail-text").replaceChildren(before, item.span ? make("mark", { textContent: found }) : found, after);
  $("detail-text").hidden = !item.text;
  $("detail-problem").textContent = item.missing ? "Its file was moved or deleted." : "";
  showPicture(item);
  showFacts(item);
  sayPlace();
  if (item.path === undefined) complete(item);
}

function showPicture(item) {
  const old = $("detail-image");
  const image = make("img", { id: "detail-image", hidden: !item.image, alt: item.text || titleOf(item) || `picture ${item.id}` });
  old.replaceWith(image); // a new one, so that the picture before it is not shown meanwhile
  if (!item.image) return;
  image.addEventListener("error", () => { image.hidden = true; $("detail-problem").textContent ||= "The picture cannot be read any more."; });
  api.showThumbnail(image, item.id, 1024);
}

// Metadata, path and codes; how it was found is for those who ask.
function showFacts(item) {
  const facts = Object.entries({ id: item.id, kind: modalityName(item.modality), ...item.meta });
  if (item.path) facts.push(["file", item.path]);
  $("detail-meta").replaceChildren(...facts.flatMap(([name, value]) => [make("dt", { textContent: name }), fact(name, value, item)]));
  const how = [];
  if (typeof item.confidence === "number") how.push(`${percent(item.confidence)} sure`);
  if (item.score !== undefined) how.push(`similarity ${item.score.toFixed(3)}`);
  $("detail-how").replaceChildren(make("p", { className: "fine", textContent: how.join(" · ") }), chips(item));
  $("detail-original").hidden = !item.path || item.missing === true;
  $("detail-original").href = api.originalPath(item.id);
}

function fact(name, value, item) {
  const shown = make("dd", { textContent: written(value) });
  if (name === "file" && value === item.path && navigator.clipboard) {
    const copy = button("Copy", { className: "plain", label: "Copy the path" }, async () => {
      await navigator.clipboard.writeText(item.path);
      copy.textContent = "Copied";
    });
    shown.append(" ", copy);
  }
  return shown;
}

// What a list leaves out of an item: the path of its file.
async function complete(item) {
  try {
    item.path = (await api.item(item.id)).path ?? null;
    if (showing === item) showFacts(item);
  } catch (error) {
    if (showing === item) $("detail-problem").textContent = error.status === 404 ? "This item was removed meanwhile." : error.message;
  }
}

export function start(like) {
  $("detail-before").addEventListener("click", () => step(-1));
  $("detail-next").addEventListener("click", () => step(1));
  $("detail-like").addEventListener("click", () => { $("detail").close(); like(showing.id); });
  $("detail").addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.target.matches("summary")) return;
    event.preventDefault();
    step(by);
  });
}
