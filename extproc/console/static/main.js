// The frame: who is logged in, which page is on view, the dialog over it.

import { html, nothing, render } from "./vendor/lit-html.js";
import { logOut, whoAmI } from "./api.js";
import { audit } from "./audit.js";
import { board } from "./board.js";
import { compensation } from "./compensation.js";
import { decisions } from "./decisions.js";
import { connect, disconnect } from "./live.js";
import { login } from "./login.js";
import { changed, onChange, store } from "./store.js";
import { tenants } from "./tenants.js";
import { thresholds } from "./thresholds.js";
import { t } from "./words.js";

// A page: what it draws, what it loads when it comes on view, and what it ends when it goes.
const PAGES = { board, decisions, thresholds, tenants, compensation, audit };

function page() {
  return PAGES[store.route] ?? PAGES.board;
}

function navigation() {
  const link = (name) => html`<a href="#/${name}" aria-current=${PAGES[name] === page() ? "page" : nothing}>${t(`nav.${name}`)}</a>`;
  return html`
    <header class="bar">
      <a class="brand" href="#/board"><img src="/static/icon.svg" alt=""> Tidegate</a>
      <nav>${Object.keys(PAGES).map(link)}</nav>
      <span class="me"><b>${store.me.who}</b> <span class="role">${t(`role.${store.me.role}`)}</span></span>
      <button class="quiet" @click=${speak}>${t("nav.language")}</button>
      <button class="quiet" @click=${leave}>${t("nav.logout")}</button>
    </header>`;
}

function frame() {
  if (store.me === undefined) return nothing;
  if (store.me === null) return login({ begin, speak });
  return html`
    ${navigation()}
    <main class=${store.route || "board"}>${page().draw()}</main>
    <dialog @close=${dismiss} @cancel=${dismiss}>${store.dialog?.view() ?? nothing}</dialog>
    <div role="status" class="notice ${store.notice?.kind ?? ""}" ?hidden=${!store.notice}>${store.notice?.text}</div>`;
}

function draw() {
  document.documentElement.lang = store.language;
  render(frame(), document.body);
  const dialog = document.querySelector("dialog");
  if (dialog && store.dialog && !dialog.open) dialog.showModal();
  if (dialog && !store.dialog && dialog.open) dialog.close();
}

function dismiss() {
  store.dialog = null;
  changed();
}

function speak() {
  store.language = store.language === "zh" ? "en" : "zh";
  localStorage.setItem("language", store.language);
  changed();
}

async function leave() {
  await logOut().catch(() => {});
  page().leave?.();
  disconnect();
  changed();
}

function go() {
  const [name, ...rest] = location.hash.replace(/^#\//, "").split("/");
  page().leave?.();
  store.route = name in PAGES ? name : "board";
  store.dialog = null;
  if (store.me) page().enter?.(...rest.map(decodeURIComponent));
  changed();
}

// Called when somebody is logged in.
function begin() {
  connect();
  go();
}

onChange(draw);
addEventListener("hashchange", go);
await whoAmI().catch(() => {
  store.me = null;
});
if (store.me) begin();
else changed();
