// Who calls, what they have bought and used, and their statements.

import { html, nothing } from "./vendor/lit-html.js";
import { call } from "./api.js";
import { ask } from "./ask.js";
import { day, moment, number, percent, short } from "./format.js";
import { changed, may } from "./store.js";
import { t, trouble } from "./words.js";

const PAGE = 100;

const view = {
  prefix: "",
  tenants: null,
  more: false,
  chosen: null, // a Tenant
  at: "", // a day of the period whose statement is on view; "": now
  entries: [],
  moreEntries: false,
  problem: null,
};

async function attempt(work) {
  try {
    await work();
    view.problem = null;
  } catch (error) {
    view.problem = error;
  }
  changed();
}

const load = () => attempt(async () => {
  const told = await call("TenantService/ListTenants", { prefix: view.prefix, limit: PAGE });
  Object.assign(view, { tenants: told.tenants, more: told.more });
});

const loadMore = () => attempt(async () => {
  const told = await call("TenantService/ListTenants", { prefix: view.prefix, limit: PAGE, after: view.tenants.at(-1).name });
  view.tenants = [...view.tenants, ...told.tenants];
  view.more = told.more;
});

const open = (name) => attempt(async () => {
  view.chosen = await call("TenantService/GetTenant", { name });
  view.at = "";
  await restart();
});

async function restart() {
  view.entries = [];
  view.moreEntries = false;
  if (view.chosen.quota) await loadEntries();
}

async function loadEntries() {
  const request = { tenant: view.chosen.name, limit: PAGE };
  if (view.at) request.at = new Date(`${view.at}T12:00`).toISOString();
  if (view.entries.length) request.before_id = view.entries.at(-1).id;
  const told = await call("TenantService/ListEntries", request);
  view.entries = [...view.entries, ...told.entries];
  view.moreEntries = told.more;
}

function enter(name) {
  if (name) open(name);
  else {
    view.chosen = null;
    load();
  }
}

// Used, held and free of what there is in all; what is overdrawn fills it.
function bar(quota) {
  const all = Math.max(1, quota.total);
  const used = Math.min(1, Math.max(0, quota.used / all));
  const held = Math.min(1 - used, Math.max(0, quota.held / all));
  return html`
    <svg class="kv" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=${percent(used)}>
      <rect class="room" width="100" height="8" />
      <rect class=${quota.available < 0 ? "capacity" : "used"} width=${100 * used} height="8" />
      <rect class="held" x=${100 * used} width=${100 * held} height="8" />
    </svg>`;
}

function row(tenant) {
  const { quota, rate } = tenant;
  const cell = (name, content, kind = "") => html`<td class=${kind} data-name=${t(`tenants.${name}`)}>${content}</td>`;
  return html`
    <tr>
      ${cell("name", html`<a href="#/tenants/${encodeURIComponent(tenant.name)}"><b>${tenant.name}</b></a>`)}
      ${cell("class", tenant.service_class)}
      ${cell("plan", tenant.plan)}
      ${cell("rpm", rate ? number(rate.requests_per_minute) : "", "number")}
      ${cell("tpm", rate ? short(rate.tokens_per_minute) : "", "number")}
      ${cell("quota", quota ? html`<span class="gauge">${bar(quota)}</span>` : "")}
      ${cell("available", quota ? short(quota.available) : "", "number")}
    </tr>`;
}

function list() {
  const heads = ["name", "class", "plan", "rpm", "tpm", "quota", "available"];
  const search = (event) => {
    view.prefix = event.target.value.trim();
    load();
  };
  return html`
    <section class="panel">
      <h1>${t("nav.tenants")}</h1>
      <div class="filters"><label>${t("tenants.prefix")}<input name="prefix" .value=${view.prefix} @change=${search}></label></div>
      ${refusal()}
      ${view.tenants === null ? nothing : view.tenants.length === 0 ? html`<p>${t("tenants.none")}</p>` : html`
        <div class="scroll"><table class="cards">
          <thead><tr>${heads.map((each) => html`<th class=${["rpm", "tpm", "available"].includes(each) ? "number" : ""}>${t(`tenants.${each}`)}</th>`)}</tr></thead>
          <tbody>${view.tenants.map(row)}</tbody></table></div>`}
      ${view.more ? html`<footer><button class="quiet" @click=${loadMore}>${t("form.more")}</button></footer>` : nothing}
    </section>`;
}

function refusal() {
  return view.problem ? html`<p role="alert" class="trouble">${trouble(view.problem)}</p>` : nothing;
}

function entry(each) {
  const cell = (name, content, kind = "") => html`<td class=${kind} data-name=${t(`entries.${name}`)}>${content}</td>`;
  return html`
    <tr>
      ${cell("at", moment(each.at), "nowrap")}
      ${cell("kind", t(`kind.${each.kind}`))}
      ${cell("tokens", html`<b class=${each.tokens < 0 ? "out" : "in"}>${each.tokens > 0 ? "+" : ""}${number(each.tokens)}</b>`, "number")}
      ${cell("balance", number(each.balance), "number")}
      ${cell("exchange", each.exchange ? html`<span><code>${each.exchange}</code> ${each.outcome ? t(`outcome.${each.outcome}`) : ""}</span>` : "")}
      ${cell("note", html`<span>${each.note}${each.estimated ? html` <small>${t("entries.estimated")}</small>` : nothing}</span>`)}
    </tr>`;
}

function one(tenant) {
  const { quota, rate } = tenant;
  const fact = (name, value) => html`<div><dt>${t(`tenants.${name}`)}</dt><dd>${value}</dd></div>`;
  return html`
    <section class="panel">
      <h1><a class="back" href="#/tenants">${t("nav.tenants")}</a> ${tenant.name}
        ${quota && may("admin") ? html`<span class="buttons"><button class="quiet" id="adjust" @click=${adjust}>${t("tenants.adjust")}</button></span>` : nothing}</h1>
      ${refusal()}
      <dl class="facts">
        ${fact("class", tenant.service_class)}
        ${fact("plan", tenant.plan || "–")}
        ${rate ? html`${fact("rpm", number(rate.requests_per_minute))} ${fact("tpm", number(rate.tokens_per_minute))}` : nothing}
        ${quota ? html`
          ${fact("period", `${day(quota.period_start)} – ${day(quota.period_end)}`)}
          ${fact("total", number(quota.total))}
          ${fact("used", number(quota.used))} ${fact("held", number(quota.held))} ${fact("available", number(quota.available))}` : nothing}
      </dl>
      ${quota ? bar(quota) : html`<p>${t("tenants.unlimited")}</p>`}
    </section>
    ${quota ? statement() : nothing}`;
}

function statement() {
  const heads = ["at", "kind", "tokens", "balance", "exchange", "note"];
  const look = (event) => {
    view.at = event.target.value;
    attempt(restart);
  };
  return html`
    <section class="panel" id="statement">
      <h1>${t("entries.title")}</h1>
      <div class="filters"><label>${t("entries.period")}<input type="date" name="at" .value=${view.at} @change=${look}></label></div>
      ${view.entries.length === 0 ? html`<p>${t("entries.none")}</p>` : html`
        <div class="scroll"><table class="cards">
          <thead><tr>${heads.map((each) => html`<th class=${["tokens", "balance"].includes(each) ? "number" : ""}>${t(`entries.${each}`)}</th>`)}</tr></thead>
          <tbody>${view.entries.map(entry)}</tbody></table></div>`}
      ${view.moreEntries ? html`<footer><button class="quiet" @click=${() => attempt(loadEntries)}>${t("form.more")}</button></footer>` : nothing}
    </section>`;
}

function adjust() {
  const tenant = view.chosen.name;
  const id = crypto.randomUUID(); // so that a second click changes nothing
  let tokens = NaN;
  const content = html`
    <label>${t("tenants.tokens")}<input name="tokens" type="number" step="1" required
      @input=${(event) => (tokens = event.target.valueAsNumber)}></label>`;
  ask({
    id: "adjust-confirm", title: t("tenants.adjustTitle", { tenant }), content, act: t("tenants.adjustDo"),
    apply: async (reason) => {
      const done = await call("TenantService/AdjustQuota", { id, tenant, tokens, reason });
      await open(tenant);
      return { text: t("tenants.adjusted", { n: number(done.after.available) }) };
    },
  });
}

export const tenants = { draw: () => (view.chosen ? one(view.chosen) : list()), enter };
