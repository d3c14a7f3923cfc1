// Calls to the console's server. All are POSTs of JSON: the server asks for our Origin on each.

import { changed, store } from "./store.js";

export class Refused extends Error {
  constructor(code, detail) {
    super(detail || code);
    this.code = code;
  }
}

async function send(path, body, signal) {
  let response;
  try {
    response = await fetch(path, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("CONSOLE_UNREACHABLE");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({ error: String(response.status) }));
  if (told.error === "UNAUTHENTICATED" && path !== "/api/login") {
    store.me = null;
    changed();
  }
  throw new Refused(told.error, told.detail);
}

export async function logIn(token) {
  store.me = await (await send("/api/login", { token })).json();
}

export async function logOut() {
  await send("/api/logout", {});
  store.me = null;
}

export async function whoAmI() {
  store.me = await (await fetch("/api/me")).json();
}

// Calls a method of the control API, such as "ModeService/SetMode".
export async function call(method, request = {}) {
  return (await send(`/api/${method}`, request)).json();
}

// Calls a method that answers bit by bit, until the signal, if there is one, aborts it.
export async function* stream(method, request = {}, signal = undefined) {
  const response = await send(`/api/${method}`, request, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const told = JSON.parse(line);
      if (told.error) throw new Refused(told.error, told.detail);
      yield told;
    }
    if (done) return;
  }
}
