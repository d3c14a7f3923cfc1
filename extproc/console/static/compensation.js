// Making good for an outage: say for when and why, see what it would do, then do it and watch.

import { html, nothing } from "./vendor/lit-html.js";
import { call, stream } from "./api.js";
import { ask } from "./ask.js";
import { moment, number, percent } from "./format.js";
import { changed, may } from "./store.js";
import { t, trouble } from "./words.js";

const NUMBERS = ["subscriptions", "tokens_reset", "tokens_bonus"];

const view = { campaign: null, dry: null, progress: null, applied: null, problem: null };

// A moment as <input type="datetime-local"> has it: local, to the minute.
function local(date) {
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

function fresh() {
  const now = local(new Date());
  return { id: `outage-${now.slice(0, 10)}`, valid_at: now, below: 25, bonus: 25 };
}

async function attempt(work) {
  try {
    await work();
    view.problem = null;
  } catch (error) {
    view.problem = error;
  }
  changed();
}

async function list() {
  view.applied = (await call("CompensationService/ListCampaigns", { limit: 50 })).campaigns;
}

function enter() {
  view.campaign ??= fresh();
  attempt(list);
}

function campaign() {
  const { id, valid_at, below, bonus } = view.campaign;
  return { id, valid_at: new Date(valid_at).toISOString(), below: below / 100, bonus: bonus / 100 };
}

function tryIt(event) {
  event.preventDefault();
  view.progress = null;
  attempt(async () => {
    view.dry = null;
    view.dry = await call("CompensationService/DryRunCompensation", { campaign: campaign() });
  });
}

function apply() {
  const { totals, begun } = view.dry;
  const asked = campaign();
  ask({
    id: "compensation-confirm", title: t("compensation.confirm", { id: asked.id }), act: t("compensation.do"),
    content: html`${sums(totals)}${begun ? html`<p class="trouble">${t("compensation.begun")}</p>` : nothing}`,
    apply: async (reason) => {
      for await (const told of stream("CompensationService/ApplyCompensation", {
        campaign: asked, reason, expected_subscriptions: totals.subscriptions,
      })) {
        view.progress = told;
        changed();
      }
      view.dry = null;
      await attempt(list);
      return { text: t("compensation.done", { n: number(view.progress?.totals?.subscriptions) }) };
    },
  });
}

function sums(totals) {
  const fact = (name) => html`<div><dt>${t(`compensation.${name}`)}</dt><dd>${number(totals[name])}</dd></div>`;
  return html`<dl class="facts">${["subscriptions", "resets", "bonuses", "tokens_reset", "tokens_bonus"].map(fact)}</dl>`;
}

function form() {
  const given = view.campaign;
  const field = (name, attributes) => html`
    <label>${t(`compensation.${name}`)}<input name=${name} required .value=${String(given[name])}
      type=${attributes.type} min=${attributes.min ?? nothing} max=${attributes.max ?? nothing} step=${attributes.step ?? nothing}
      maxlength=${attributes.maxlength ?? nothing} pattern=${attributes.pattern ?? nothing} @input=${(event) => {
        given[name] = attributes.type === "number" ? event.target.valueAsNumber : event.target.value;
        view.dry = null;
        changed();
      }}></label>`;
  return html`
    <form class="panel" id="campaign" @submit=${tryIt}>
      <h1>${t("nav.compensation")}</h1>
      <p class="hint">${t("compensation.hint")}</p>
      <div class="filters">
        ${field("id", { type: "text", maxlength: 100, pattern: "[A-Za-z0-9._\\-]+" })}
        ${field("valid_at", { type: "datetime-local" })}
        ${field("below", { type: "number", min: 0, max: 100, step: "any" })}
        ${field("bonus", { type: "number", min: 0, max: 1000, step: "any" })}
      </div>
      ${view.problem ? html`<p role="alert" class="trouble">${trouble(view.problem)}</p>` : nothing}
      <footer><button class="quiet" id="dry-run">${t("compensation.try")}</button>
        ${may("admin") ? html`<button type="button" class="act" id="apply" ?disabled=${!view.dry} @click=${apply}>${t("compensation.apply")}</button>` : nothing}</footer>
    </form>`;
}

function outlook() {
  const { totals, rows, begun } = view.dry;
  const heads = ["tenant", "plan", "used", "total", "kind", "tokens"];
  const cell = (name, content, kind = "") => html`<td class=${kind} data-name=${t(`compensation.${name}`)}>${content}</td>`;
  return html`
    <section class="panel" id="outlook">
      <h1>${t("compensation.would")}</h1>
      ${begun ? html`<p class="trouble">${t("compensation.begun")}</p>` : nothing}
      ${sums(totals)}
      <div class="scroll"><table class="cards">
        <thead><tr>${heads.map((each) => html`<th class=${["used", "total", "tokens"].includes(each) ? "number" : ""}>${t(`compensation.${each}`)}</th>`)}</tr></thead>
        <tbody>${rows.map((each) => html`<tr>
          ${cell("tenant", html`<b>${each.tenant}</b>`)} ${cell("plan", each.plan)} ${cell("used", number(each.used), "number")}
          ${cell("total", number(each.total), "number")} ${cell("kind", t(`kind.${each.kind}`))} ${cell("tokens", number(each.tokens), "number")}</tr>`)}</tbody>
      </table></div>
      ${rows.length < totals.subscriptions ? html`<p class="hint">${t("compensation.first", { n: number(rows.length) })}</p>` : nothing}
    </section>`;
}

function progress() {
  const { completed, total, totals, done } = view.progress;
  return html`
    <section class="panel" id="progress">
      <h1>${done ? t("compensation.finished") : t("compensation.running")} ${percent(total ? completed / total : 1)}</h1>
      <progress max=${Math.max(1, total)} .value=${total ? completed : 1}></progress>
      ${totals ? sums(totals) : nothing}
    </section>`;
}

function campaigns() {
  const heads = ["id", "valid_at", "terms", "subscriptions", "tokens_reset", "tokens_bonus", "state"];
  const cell = (name, content, kind = "") => html`<td class=${kind} data-name=${t(`compensation.${name}`)}>${content}</td>`;
  return html`
    <section class="panel">
      <h1>${t("compensation.applied")}</h1>
      ${view.applied.length === 0 ? html`<p>${t("compensation.none")}</p>` : html`
        <div class="scroll"><table class="cards">
          <thead><tr>${heads.map((each) => html`<th class=${NUMBERS.includes(each) ? "number" : ""}>${t(`compensation.${each}`)}</th>`)}</tr></thead>
          <tbody>${view.applied.map(({ campaign: each, totals, done }) => html`<tr>
            ${cell("id", html`<b>${each.id}</b>`)} ${cell("valid_at", moment(each.valid_at), "nowrap")}
            ${cell("terms", t("compensation.termsText", { under: percent(each.below), bonus: percent(each.bonus) }))}
            ${NUMBERS.map((name) => cell(name, number(totals?.[name]), "number"))}
            ${cell("state", t(done ? "compensation.finished" : "compensation.unfinished"))}</tr>`)}</tbody>
        </table></div>`}
    </section>`;
}

function draw() {
  view.campaign ??= fresh();
  return html`
    ${form()}
    ${view.progress ? progress() : nothing}
    ${view.dry ? outlook() : nothing}
    ${view.applied ? campaigns() : nothing}`;
}

export const compensation = { draw, enter };
