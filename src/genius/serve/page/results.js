// The results: cards, what can be done with them, and moving among them by keys.

import * as api from "/page/api.js";
import { askForKey, countItems } from "/page/dialogs.js";
import * as fields from "/page/fields.js";
import { $, button, make, nameOf, passageOf, picture, titleOf, toast } from "/page/parts.js";
import * as viewer from "/page/viewer.js";

export let hits = [];
let left = null; // the cursor of the next page, if there is one
let calls = {}; // like(id), but(id), more(cursor): what the search does for the results

export function set(answer) {
  hits = answer.hits;
  left = answer.cursor || null;
  fields.learn(hits);
  draw();
}

export function append(answer) {
  const last = $("results").lastElementChild;
  hits.push(...answer.hits);
  left = answer.cursor || null;
  fields.learn(answer.hits);
  $("results").append(...answer.hits.map(result));
  markShared(hits[0]);
  sayMore();
  return last?.nextElementSibling;
}

export function clear() { set({ hits: [] }); }

export function draw() {
  $("results").replaceChildren(...hits.map(result));
  if (hits.length) {
    $("results").firstElementChild.tabIndex = 0;
    markShared(hits[0]);
  }
  $("legend").hidden = !fields.shows("codes") || hits.length < 2;
  sayMore();
}

function sayMore() { $("more").hidden = !left; }

// Get the next page; whether anything came.
export async function more() {
  if (!left) return false;
  $("more").disabled = true;
  try {
    return await calls.more(left);
  } finally {
    $("more").disabled = false;
  }
}
more.left = () => Boolean(left);

// --- cards -----------------------------------------------------------------------------------------------

// One item as a card; `opened` shows it in large, `actions` are buttons. Hits have a rank, too.
export function card(item, opened, actions = []) {
  const look = button("", { className: item.image ? "look" : "look words", label: `Look at ${nameOf(item)}` }, opened);
  look.append(item.image ? picture(item, 384) : make("p", { textContent: passageOf(item) }));
  look.classList.toggle("short", passageOf(item).length < 60);
  const caption = item.image ? passageOf(item) || titleOf(item) : "";
  const about = make("div", { className: "about" });
  if (caption) about.append(make("p", { className: item.text ? "caption" : "caption told", textContent: caption, title: caption }));
  about.append(...fields.about(item));
  if (actions.length) about.append(make("div", { className: "actions" }, ...actions));
  const element = make("li", { className: "card", tabIndex: -1, dataset: { id: item.id } }, look, about);
  if (item.rank !== undefined) {
    element.prepend(make("span", { className: "rank", textContent: item.rank, ariaHidden: "true" }));
    element.setAttribute("aria-label", `${item.rank}: ${nameOf(item)}`);
  }
  element.item = item;
  return element;
}

function result(hit) {
  const element = card(hit, () => viewer.open(() => hits, hit, more), actions(hit));
  for (const event of ["pointerenter", "focusin"]) element.addEventListener(event, () => markShared(hit));
  return element;
}

function actions(hit) {
  const like = button("More", { className: "more", title: "More like this (key: m)", label: `More like this: ${nameOf(hit)}` }, () => calls.like(hit.id));
  like.append(make("span", { textContent: " like this" }));
  const but = button("But …", { className: "but", title: "Like this, but …", label: `But …: like ${nameOf(hit)}, but as you say` }, () => calls.but(hit.id));
  const remove = button("", { className: "remove", title: "Remove", label: `Remove ${nameOf(hit)}` }, () => removeItem(hit, remove));
  const bin = () => remove.replaceChildren($("bin").content.cloneNode(true));
  remove.addEventListener("blur", () => { remove.classList.remove("sure"); bin(); });
  bin();
  return [like, but, remove];
}

async function removeItem(hit, pressed) {
  if (!pressed.classList.contains("sure")) {
    pressed.classList.add("sure");
    pressed.textContent = "Really?";
    return;
  }
  try {
    await api.remove(hit.id);
  } catch (error) {
    if (error.status === 401) { askForKey(() => removeItem(hit, pressed)); return; }
    if (error.status !== 404) { toast(`“${nameOf(hit)}” was not removed: ${error.message}`); return; }
  }
  const neighbour = pressed.closest(".card").nextElementSibling || pressed.closest(".card").previousElementSibling;
  hits = hits.filter((one) => one !== hit);
  pressed.closest(".card").remove();
  (neighbour || $("q")).focus();
  toast(`Removed “${nameOf(hit)}”.`);
  countItems();
}

// --- codes, where they are shown -------------------------------------------------------------------------

function sharedPrefix(one, other) {
  let length = 0;
  while (length < one.length && one[length] === other[length]) length += 1;
  return length;
}

// Colour the codes of each card that it shares with the item `reference`; the rest steps back. What has another
// modality can be kin: the same codes after it.
function markShared(reference) {
  if (!fields.shows("codes") || !reference) return;
  $("reference").textContent = reference.rank === 1 ? "the first result" : `result ${reference.rank}`;
  for (const { item, ...at } of [...$("results").children].map((one) => ({ item: one.item, row: one.querySelector(".chips") }))) {
    const shared = sharedPrefix(item.codes, reference.codes);
    const kin = 1 + sharedPrefix(item.codes.slice(1), reference.codes.slice(1));
    at.row.querySelectorAll(".chip").forEach((one, level) => {
      one.classList.toggle("shared", level < shared);
      one.classList.toggle("kin", !shared && level > 0 && level < kin);
    });
    at.row.setAttribute("aria-label", `Codes, ${shared} of ${item.codes.length} shared with result ${reference.rank}`);
  }
}

// --- keys ------------------------------------------------------------------------------------------------

// Arrow keys move from card to card, by rows where there are several in one.
export function moveFocus(event) {
  const cards = [...$("results").children];
  const at = cards.indexOf(document.activeElement.closest?.(".card"));
  if (at < 0 || event.target.matches("input, textarea, select")) return false;
  if (event.key === "m") { calls.like(cards[at].item.id); return true; }
  if (event.key === "Enter" && document.activeElement === cards[at]) { cards[at].querySelector(".look").click(); return true; }
  const perRow = cards.filter((one) => one.offsetTop === cards[0].offsetTop).length;
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow, ArrowUp: -perRow }[event.key];
  if (!step || !cards[at + step]) return false;
  cards[at + step].focus();
  return true;
}

export function start(search) {
  calls = search;
  $("results").addEventListener("pointerleave", () => markShared(hits[0]));
  $("more").addEventListener("click", more);
  fields.start(draw);
  viewer.start(calls.like);
}
