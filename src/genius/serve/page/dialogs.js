// The dialogs (add an item, the key) and the live count of items.

import * as api from "/page/api.js";
import { $, isPicture, noPicture, toast } from "/page/parts.js";

export let facts = {}; // what the server last said of the index
let then = null; // what to do once there is a key
let picture = null; // of the item to add
let previewUrl = null;

// --- the count -------------------------------------------------------------------------------------------

// Ask how many items there are: "there", "away", or "locked" where a key is needed.
export async function countItems() {
  try {
    facts = await api.stats();
  } catch (error) {
    const locked = error.status === 401;
    $("count").classList.add("away");
    sayCount("", locked ? "key needed" : "not connected");
    return locked ? "locked" : "away";
  }
  $("count").classList.remove("away");
  sayCount(facts.items.toLocaleString(), facts.items === 1 ? "item" : "items");
  const parts = Object.entries(facts.modalities).filter(([, count]) => count).map(([name, count]) => `${count.toLocaleString()} ${name}`);
  $("count").title = parts.join(" · ");
  document.querySelectorAll("input[name=want]").forEach((one) => {
    one.disabled = one.value !== "any" && !one.checked && !facts.modalities[one.value];
    one.parentElement.title = one.disabled ? "There are none in this collection" : "";
  });
  $("empty").hidden = facts.items > 0;
  $("limit").max = facts.limits.hits;
  $("beam").max = facts.limits.beam;
  return "there";
}

function sayCount(number, word) {
  $("count-number").textContent = number;
  $("count-word").textContent = word;
  $("open-key").hidden = !api.key() && word !== "key needed";
}

// --- the key ---------------------------------------------------------------------------------------------

export function askForKey(next = null) {
  then = next;
  $("key-value").value = api.key();
  if (!$("key").open) $("key").showModal();
}

function takeKey() {
  api.useKey($("key-value").value.trim());
  $("key").close();
  countItems();
  then?.();
  then = null;
}

// --- adding ----------------------------------------------------------------------------------------------

function openAdd() {
  usePicture(null);
  $("add-form").reset();
  $("add-problem").textContent = "";
  $("add").showModal();
}

function usePicture(file) {
  $("add-problem").textContent = file && !isPicture(file) ? noPicture(file) : "";
  if (file && !isPicture(file)) return;
  picture = file;
  if (previewUrl) URL.revokeObjectURL(previewUrl);
  previewUrl = file && URL.createObjectURL(file);
  $("add-preview").hidden = !file;
  if (file) $("add-preview").src = previewUrl; else $("add-preview").removeAttribute("src");
  $("add-hint").textContent = file ? file.name : "Drop a picture or choose one";
}

async function add() {
  const text = $("add-text").value.trim();
  if (!picture && !text) { $("add-problem").textContent = "Give a picture, a text, or both."; return; }
  const submit = $("add-form").querySelector("[type=submit]");
  submit.disabled = true;
  submit.textContent = "Adding …";
  try {
    const answer = await api.add({ id: $("add-id").value.trim(), text, image: picture });
    const name = $("add-id").value.trim() || picture?.name || (text.length > 40 ? `${text.slice(0, 40)}…` : text);
    $("add").close();
    toast(answer.added ? `Added “${name}”. It is searchable now.` : answer.updated ? `Updated “${name}”.` : `“${name}” was there already.`);
    countItems();
  } catch (error) {
    $("add-problem").textContent = error.again ? `${error.message} Nothing is lost: try again.` : error.message;
    if (error.status === 401) askForKey(add);
  } finally {
    submit.disabled = false;
    submit.textContent = "Add";
  }
}

// Whether the dialog is open and takes a file that was dropped or pasted.
export function takesFile(file) {
  if (!$("add").open) return false;
  usePicture(file);
  return true;
}

export function start() {
  for (const opener of ["open-add", "add-first"]) $(opener).addEventListener("click", openAdd);
  $("open-key").addEventListener("click", () => askForKey());
  $("add-file").addEventListener("change", () => usePicture($("add-file").files[0] || null));
  $("add-preview").addEventListener("error", () => { $("add-preview").hidden = true; }); // no browser shows every format
  $("add-form").addEventListener("submit", (event) => { event.preventDefault(); add(); });
  $("key-form").addEventListener("submit", (event) => { event.preventDefault(); takeKey(); });
  document.querySelectorAll("[data-close]").forEach((button) => {
    button.addEventListener("click", () => button.closest("dialog").close());
  });
  document.querySelectorAll("dialog").forEach((dialog) => dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // a click beside it
  }));
}
