// The routes of /openapi.json as forms that send real requests. Whatever comes back is shown as text.

import { key, useKey } from "/page/api.js";

const EXAMPLES = {
  "POST /v1/search": { text: "a red apple", want: "any", limit: 3 },
  "POST /v1/items": { items: [{ id: "example", text: "an apple on a table", meta: {} }] },
};

function make(tag, fields = {}, children = []) {
  const one = Object.assign(document.createElement(tag), fields);
  one.append(...children);
  return one;
}

function field(parameter) {
  const input = make("input", { name: parameter.name, required: Boolean(parameter.required) });
  const start = parameter.schema?.default;
  if (start !== undefined) input.placeholder = String(start);
  const about = parameter.description || parameter.schema?.description || parameter.in;
  return make("label", {}, [`${parameter.name} (${about})`, input]);
}

function request(method, path, parameters, form) {
  const values = new FormData(form);
  const query = new URLSearchParams();
  let url = path;
  for (const { name, in: where } of parameters) {
    const value = values.get(name);
    if (where === "path") url = url.replace(`{${name}}`, encodeURIComponent(value));
    else if (where === "query" && value) query.set(name, value);
  }
  const headers = key() ? { Authorization: `Bearer ${key()}` } : {};
  const body = values.get("request body");
  if (body !== null) headers["Content-Type"] = "application/json";
  const rest = String(query);
  return [rest ? `${url}?${rest}` : url, { method, headers, ...(body === null ? {} : { body }) }];
}

async function show(answer, response, milliseconds) {
  const type = response.headers.get("content-type") || "";
  const line = `${response.status} ${response.statusText}, ${Math.round(milliseconds)} ms, ${type}`;
  if (type.startsWith("image/")) {
    const image = make("img", { alt: "The answer", src: URL.createObjectURL(await response.blob()) });
    answer.replaceChildren(make("pre", { textContent: line }), image);
    return;
  }
  let text = await response.text();
  if (type.includes("json")) {
    try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* shown as it came */ }
  }
  answer.replaceChildren(make("pre", { textContent: `${line}\n\n${text}` }));
}

function route(method, path, operation) {
  const parameters = operation.parameters || [];
  const answer = make("div", { className: "answer", ariaLive: "polite" });
  const form = make("form", {}, parameters.map(field));
  if (operation.requestBody) {
    const example = JSON.stringify(EXAMPLES[`${method} ${path}`] || {}, null, 2);
    const area = make("textarea", { name: "request body", value: example, spellcheck: false });
    form.append(make("label", {}, ["Body (JSON; a multipart form with the same fields works, too)", area]));
  }
  form.append(make("button", { textContent: "Send" }), answer);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const began = performance.now();
    try {
      const response = await fetch(...request(method, path, parameters, form));
      await show(answer, response, performance.now() - began);
    } catch (error) {
      answer.replaceChildren(make("pre", { textContent: `The server does not answer: ${error.message}` }));
    }
  });
  const title = [
    make("code", { className: "method", textContent: method }),
    make("code", { textContent: path }),
    make("span", { textContent: operation.summary || "" }),
  ];
  return make("details", {}, [make("summary", {}, title), form]);
}

async function start() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const input = document.getElementById("key");
  input.value = key();
  input.addEventListener("input", () => useKey(input.value));
  const { paths } = await (await fetch("/openapi.json")).json();
  const routes = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => route(method.toUpperCase(), path, operation)));
  document.getElementById("routes").replaceChildren(...routes);
}

start();
