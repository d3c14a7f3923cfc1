// The numbers that classes are judged by: shown, changed with a reason, set back. What may be is
// the control API's to say; its refusals are shown as they come.

import { html, nothing } from "./vendor/lit-html.js";
import { call } from "./api.js";
import { ask } from "./ask.js";
import { number, percent } from "./format.js";
import { changed, may } from "./store.js";
import { t, trouble } from "./words.js";

const RATIO = { min: 0, max: 1, step: "any" };
const FIELDS = {
  close: { path: "free_watermark.close", ...RATIO },
  open: { path: "free_watermark.open", ...RATIO },
  concurrency: { path: "concurrency", ...RATIO },
  max_wait_seconds: { path: "max_wait", min: 0, step: "any" },
  max_output_tokens: { path: "max_tokens", min: 1, step: 1 },
  max_prompt_tokens: { path: "max_prompt_tokens", min: 1, step: 1 },
  weight: { path: "weight", min: 0, step: "any" },
};
const POOL_FIELDS = { max_concurrency: { path: "max_concurrency", min: 1, step: 1 } };

let now = null;
let problem = null;
let edits = {}; // "classes/P2/close" to a number

async function load() {
  edits = {};
  try {
    now = await call("ThresholdService/GetThresholds");
    problem = null;
  } catch (error) {
    problem = error;
  }
  changed();
}

function shown(field, value) {
  if (value === null) return t("thresholds.none");
  return FIELDS[field]?.max === 1 ? percent(value, 2) : number(value, 3);
}

function cell(section, name, field, { path, min, max, step }, value) {
  const key = `${section}/${name}/${field}`;
  const differs = now.changed.includes(`${section}.${name}.${path}`);
  const edit = (event) => {
    const given = event.target.valueAsNumber;
    if (Number.isNaN(given) || given === value) delete edits[key];
    else edits[key] = given;
    changed();
  };
  return html`
    <td class="${key in edits ? "edited" : ""} ${differs ? "differs" : ""}" data-name=${t(`thresholds.${field}`)} title=${differs ? t("thresholds.changed") : nothing}>
      <input type="number" inputmode="decimal" name=${key} aria-label="${name} ${t(`thresholds.${field}`)}"
        min=${min} max=${max ?? nothing} step=${step} .value=${String(edits[key] ?? value ?? "")}
        placeholder=${t("thresholds.none")} ?readonly=${!may("operator")} @change=${edit}></td>`;
}

function table(section, head, things, fields) {
  return html`
    <div class="scroll"><table class="cards numbers">
      <thead><tr><th>${head}</th>${Object.keys(fields).map((each) => html`<th>${t(`thresholds.${each}`)}</th>`)}</tr></thead>
      <tbody>${things.map((each) => html`
        <tr><th>${each.name}</th>${Object.entries(fields).map(([field, about]) => cell(section, each.name, field, about, each[field]))}</tr>`)}
      </tbody></table></div>`;
}

function draw() {
  if (now === null) return html`<section class="panel"><h1>${t("thresholds.title")}</h1>
    <p class=${problem ? "trouble" : ""}>${problem ? trouble(problem) : t("form.loading")}</p></section>`;
  const edited = Object.keys(edits).length > 0;
  return html`
    <form class="panel" id="thresholds" @submit=${askChange}>
      <h1>${t("thresholds.title")}</h1>
      ${table("classes", t("thresholds.class"), now.classes, FIELDS)}
      ${table("pools", t("thresholds.pool"), now.pools, POOL_FIELDS)}
      ${now.changed.length ? html`<p class="hint"><i class="differs"></i> ${t("thresholds.changed")}</p>` : nothing}
      ${may("operator") ? html`<footer>
        ${now.changed.length ? html`<button type="button" class="quiet" @click=${askReset}>${t("thresholds.reset")}</button>` : nothing}
        ${edited ? html`<button type="button" class="quiet" @click=${load}>${t("thresholds.discard")}</button>` : nothing}
        <button class="act" ?disabled=${!edited}>${t("thresholds.apply")}</button></footer>` : nothing}
    </form>`;
}

function askChange(event) {
  event.preventDefault();
  const change = ([key, value]) => {
    const [section, name, field] = key.split("/");
    const before = now[section].find((each) => each.name === name)[field];
    return html`<li><b>${name}</b> ${t(`thresholds.${field}`)}: ${shown(field, before)} → <b>${shown(field, value)}</b></li>`;
  };
  ask({
    id: "thresholds-confirm", title: t("thresholds.confirm"), act: t("thresholds.do"),
    content: html`<ul>${Object.entries(edits).map(change)}</ul>`,
    apply: async (reason) => inForce(await call("ThresholdService/SetThresholds", request(reason))),
  });
}

function askReset() {
  ask({
    id: "thresholds-confirm", title: t("thresholds.confirmReset"), act: t("thresholds.doReset"),
    content: html`<ul>${now.changed.map((each) => html`<li><code>${each}</code></li>`)}</ul>`,
    apply: async (reason) => inForce(await call("ThresholdService/ResetThresholds", { reason })),
  });
}

function inForce({ after, warnings }) {
  now = after;
  edits = {};
  return { text: t("thresholds.done"), warnings };
}

function request(reason) {
  const asked = { classes: {}, pools: {} };
  for (const [key, value] of Object.entries(edits)) {
    const [section, name, field] = key.split("/");
    (asked[section][name] ??= { name })[field] = value;
  }
  return { classes: Object.values(asked.classes), pools: Object.values(asked.pools), reason };
}

export const thresholds = { draw, enter: load };
