// The dialogs (add an item, the key) and the live count of items.

import * as api from "/page/api.js";
import { $, toast } from "/page/parts.js";

let then = null; // what to do once there is a key
let picture = null; // of the item to add
let previewUrl = null;

export async function countItems() {
  try {
    const facts = await api.stats();
    const parts = Object.entries(facts.modalities).filter(([, count]) => count).map(([name, count]) => `${count.toLocaleString()} ${name}`);
    sayCount(facts.items.toLocaleString(), facts.items === 1 ? "item" : "items");
    $("count").title = [...parts, `model ${facts.model}`].join(" · ");
    $("count").classList.remove("away");
    document.querySelectorAll("input[name=want]").forEach((one) => {
      one.disabled = one.value !== "any" && !one.checked && !facts.modalities[one.value];
      one.parentElement.title = one.disabled ? "There are none in this collection" : "";
    });
    $("empty").hidden = facts.items > 0;
    $("limit").max = facts.limits.hits;
    $("beam").max = facts.limits.beam;
    return true;
  } catch (error) {
    $("count").classList.add("away");
    sayCount("", error.status === 401 ? "key needed" : "not connected");
    return error.status !== 401;
  }
}

function sayCount(number, word) {
  $("count-number").textContent = number;
  $("count-word").textContent = word;
  $("open-key").hidden = !api.key() && !$("count").classList.contains("away");
}

export function askForKey(next = null) {
  then = next;
  $("key-value").value = api.key();
  if (!$("key").open) $("key").showModal();
}

function usePicture(file) {
  if (!file || !file.type.startsWith("image/")) return;
  picture = file;
  if (previewUrl) URL.revokeObjectURL(previewUrl);
  previewUrl = URL.createObjectURL(file);
  $("add-preview").src = previewUrl;
  $("add-preview").hidden = false;
  $("add-hint").hidden = true;
  if (!$("add-id").value) $("add-id").value = file.name || `item-${Date.now().toString(36)}`;
}

function openAdd() {
  picture = null;
  $("add-form").reset();
  $("add-preview").hidden = true;
  $("add-hint").hidden = false;
  $("add-problem").textContent = "";
  $("add").showModal();
}

async function add() {
  const id = $("add-id").value.trim();
  const text = $("add-text").value.trim();
  if (!picture && !text) { $("add-problem").textContent = "Give a picture, a text, or both."; return; }
  const button = $("add-form").querySelector("[type=submit]");
  button.disabled = true;
  try {
    const answer = await api.add({ id, text, image: picture });
    $("add").close();
    toast(answer.added ? `Added “${id}”. It can be found now.` : answer.updated ? `Updated “${id}”.` : `“${id}” was there already.`);
    countItems();
  } catch (error) {
    $("add-problem").textContent = error.message;
    if (error.status === 401) askForKey(add);
  } finally {
    button.disabled = false;
  }
}

export function addIsOpen(file) {
  if (!$("add").open) return false;
  usePicture(file);
  return true;
}

export function start() {
  for (const opener of ["open-add", "add-first"]) $(opener).addEventListener("click", openAdd);
  $("open-key").addEventListener("click", () => askForKey());
  $("add-file").addEventListener("change", () => usePicture($("add-file").files[0]));
  $("add-form").addEventListener("submit", (event) => { event.preventDefault(); add(); });
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    api.useKey($("key-value").value.trim());
    $("key").close();
    countItems();
    then?.();
    then = null;
  });
  document.querySelectorAll("[data-close]").forEach((button) => {
    button.addEventListener("click", () => button.closest("dialog").close());
  });
  document.querySelectorAll("dialog").forEach((dialog) => dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // a click beside it
  }));
}
