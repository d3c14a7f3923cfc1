// What was decided, and why: a summary of the last minutes, the decisions one by one, and each one's
// explanation.

import { html, nothing } from "./vendor/lit-html.js";
import { call, stream } from "./api.js";
import { clock, number, percent, seconds, short } from "./format.js";
import { changed, store } from "./store.js";
import { familyOf } from "./reasons.js";
import { runTree } from "./run_tree.js";
import { t, trouble } from "./words.js";

const PAGE = 50;
const LIVE_KEPT = 100;
const RUN_LIMIT = 1000; // calls of a run that are shown
const VERDICTS = ["admit", "merge", "shed", "reject", "wait"];

const view = {
  filter: { service_class: "", verdict: "", tenant: "", reason: "" },
  minutes: 15,
  rows: null,
  more: false,
  left: 0, // decisions that were made and are not shown, while live
  live: null, // an AbortController
  run: null, // {name, tenant, decisions}
  summary: null,
  trial: { service_class: "", close: "" },
  problem: null,
};

function filter() {
  const { service_class, verdict, tenant, reason } = view.filter;
  const some = (value) => (value.trim() ? [value.trim()] : []);
  return { service_classes: some(service_class), verdicts: some(verdict), tenants: some(tenant), reasons: some(reason) };
}

async function attempt(work) {
  try {
    await work();
    view.problem = null;
  } catch (error) {
    if (error.name !== "AbortError") view.problem = error;
  }
  changed();
}

const load = () => attempt(async () => {
  const { decisions } = await call("DecisionService/ListDecisions", { filter: filter(), limit: PAGE });
  Object.assign(view, { rows: decisions, more: decisions.length === PAGE, left: 0 });
});

const loadMore = () => attempt(async () => {
  const before = view.rows.at(-1).id;
  const { decisions } = await call("DecisionService/ListDecisions", { filter: filter(), limit: PAGE, before_id: before });
  view.rows = [...view.rows, ...decisions];
  view.more = decisions.length === PAGE;
});

const summarize = () => attempt(async () => {
  const since = new Date(Date.now() - view.minutes * 60_000).toISOString();
  const { service_class, close } = view.trial;
  const tried = service_class && close !== "" ? [{ service_class, close: Number(close) }] : [];
  view.summary = await call("DecisionService/SummarizeDecisions", { filter: { ...filter(), since }, what_if: tried });
});

// Names of runs are their tenants' own: another tenant's run of the same name is another one.
const showRun = ({ run, tenant }) => attempt(async () => {
  const { decisions } = await call("DecisionService/ListDecisions", { filter: { runs: [run], tenants: [tenant] }, limit: RUN_LIMIT });
  view.run = { name: run, tenant, decisions: decisions.reverse() };
  scrollTo({ top: 0 });
});

function hideRun() {
  view.run = null;
  changed();
}

async function follow() {
  const stop = (view.live = new AbortController());
  await attempt(async () => {
    for await (const { decisions, left_out } of stream("DecisionService/WatchDecisions", { filter: filter(), limit: 10 }, stop.signal)) {
      view.rows = [...decisions.reverse(), ...(view.rows ?? [])].slice(0, LIVE_KEPT);
      view.left += left_out;
      view.more = false;
      changed();
    }
  });
  if (view.live === stop) view.live = null;
  changed();
}

function leave() {
  view.live?.abort();
  view.live = null;
}

function refresh() {
  leave();
  load();
  summarize();
}

async function explain(id) {
  store.dialog = { view: explanation, id, told: null, problem: null };
  const dialog = store.dialog;
  changed();
  try {
    dialog.told = await call("DecisionService/ExplainDecision", { id });
  } catch (problem) {
    dialog.problem = problem;
  }
  changed();
}

function explanation() {
  const { id, told, problem } = store.dialog;
  const language = store.language === "zh" ? "text_zh" : "text_en";
  const close = () => {
    store.dialog = null;
    changed();
  };
  return html`
    <form method="dialog" id="explanation" @submit=${close}>
      <h2>${t("decisions.why")}</h2>
      <p class="hint"><code>${id}</code></p>
      ${problem ? html`<p role="alert" class="trouble">${trouble(problem)}</p>` : nothing}
      ${told ? html`
        <p class="told">${told[language]}</p>
        <ol class="steps">${told.steps.map((step) => html`
          <li class=${step.passed ? "passed" : step.skipped ? "skipped" : "refused"}><b>${step.gate}</b> ${step[language]}</li>`)}</ol>` : nothing}
      <footer><button class="act">${t("form.close")}</button></footer>
    </form>`;
}

function row(each) {
  const cell = (name, content, kind = "") => html`<td class=${kind} data-name=${t(`decisions.${name}`)}>${content}</td>`;
  const said = each.reason.startsWith("kv_") ? (value) => percent(value, 1) : short;
  const decided = each.value === null ? "" : `${said(each.value)} / ${said(each.threshold)}`;
  return html`
    <tr class=${each.verdict}>
      ${cell("at", clock(each.at), "nowrap")}
      ${cell("class", each.service_class)}
      ${cell("tenant", each.tenant)}
      ${cell("task", html`${each.task} ${each.run ? html`
        <button type="button" class="quiet small run" title=${t("run.show")} @click=${() => showRun(each)}>${each.run}</button>` : nothing}`)}
      ${cell("verdict", html`<span><b class="verdict">${t(`verdict.${each.verdict}`)}</b>${each.shadow ? html` <small>${t("mode.SHADOW")}</small>` : nothing}</span>`)}
      ${cell("reason", html`<span><i class="dot ${familyOf(each.reason)}"></i>${t(`reason.${each.reason}`)}</span>`)}
      ${cell("decided", decided, "number")}
      ${cell("free", percent(each.free_predicted), "number")}
      ${cell("prompt", number(each.prompt_tokens), "number")}
      ${cell("waited", each.waited_seconds ? seconds(each.waited_seconds) : "", "number")}
      ${cell("explain", html`<button type="button" class="quiet small" @click=${() => explain(each.id)}>${t("decisions.why")}</button>`)}
    </tr>`;
}

function filters() {
  const change = (name) => (event) => {
    view.filter[name] = event.target.value;
    if (view.live) {
      leave();
      view.rows = [];
      follow();
    } else refresh();
  };
  const choice = (name, values, label) => html`
    <label>${t(`decisions.${name}`)}<select name=${name} @change=${change(name)}>
      <option value="">${t("decisions.all")}</option>
      ${values.map((each) => html`<option value=${each} ?selected=${view.filter[name] === each}>${label(each)}</option>`)}</select></label>`;
  const classes = (store.state?.classes ?? []).map((each) => each.name);
  const reasons = (view.summary?.by_reason ?? []).map((each) => each.name);
  if (view.filter.reason && !reasons.includes(view.filter.reason)) reasons.push(view.filter.reason);
  const find = (event) => {
    event.preventDefault();
    const id = event.target.elements.id.value.trim();
    if (id) explain(id);
  };
  const toggle = () => {
    if (view.live) leave();
    else follow();
    changed();
  };
  return html`
    <div class="filters">
      ${choice("service_class", classes, (each) => each)}
      ${choice("verdict", VERDICTS, (each) => t(`verdict.${each}`))}
      ${choice("reason", reasons, (each) => t(`reason.${each}`))}
      <label>${t("decisions.tenant")}<input name="tenant" .value=${view.filter.tenant} @change=${change("tenant")}></label>
      <form @submit=${find}><label>${t("decisions.id")}<input name="id" maxlength="256" placeholder="chatcmpl-…"></label></form>
      <span class="buttons">
        <button type="button" class=${view.live ? "act" : "quiet"} aria-pressed=${Boolean(view.live)} @click=${toggle}>${t("decisions.live")}</button>
        <button type="button" class="quiet" @click=${refresh}>${t("form.refresh")}</button></span>
    </div>`;
}

function bars(name, shares, label = (each) => each) {
  if (!shares.length) return nothing;
  return html`
    <section><h2>${t(`decisions.${name}`)}</h2>
      ${shares.slice(0, 6).map((each) => html`
        <p class="share"><span>${label(each.name)}</span> <b>${number(each.count)}</b>
          <svg viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true"><rect class="room" width="100" height="4" />
            <rect class=${name === "by_reason" ? familyOf(each.name) : "used"} width=${100 * each.share} height="4" /></svg></p>`)}
    </section>`;
}

function summary() {
  const told = view.summary;
  const span = (minutes) => html`
    <button type="button" class=${view.minutes === minutes ? "act small" : "quiet small"} @click=${() => {
      view.minutes = minutes;
      summarize();
    }}>${t("board.minutes", { n: minutes })}</button>`;
  return html`
    <section class="panel why">
      <h1>${t("decisions.summary")} <span class="buttons">${[5, 15, 60].map(span)}</span></h1>
      ${told === null ? nothing : told.decisions === 0 ? html`<p>${t("decisions.none")}</p>` : html`
        <p class="big">${t("decisions.counted", { n: number(told.decisions), admitted: number(told.admitted), refused: number(told.refused) })}
          ${told.long_context_share > 0 ? t("decisions.long", { p: percent(told.long_context_share), n: short(told.long_prompt_tokens) }) : nothing}</p>
        <div class="shares">
          ${bars("by_reason", told.by_reason, (each) => t(`reason.${each}`))}
          ${bars("bottlenecks", told.bottlenecks, (each) => t(`scarce.${each}`))}
          ${bars("by_class", told.by_class)}
          ${bars("by_tenant", told.by_tenant)}
          ${bars("by_task", told.by_task)}
        </div>
        ${trial(told)}`}
    </section>`;
}

function trial(told) {
  const run = (event) => {
    event.preventDefault();
    const { try_name, try_close } = event.target.elements;
    view.trial = { service_class: try_name.value, close: Number(try_close.value) / 100 };
    summarize();
  };
  const [result] = told.what_if;
  return html`
    <form class="filters" id="trial" @submit=${run}>
      <label>${t("decisions.whatif")}<select name="try_name">${(store.state?.classes ?? []).map((each) => html`
        <option value=${each.name} ?selected=${view.trial.service_class === each.name}>${each.name}</option>`)}</select></label>
      <label>${t("decisions.close")}<input name="try_close" type="number" min="0" max="100" step="any" required></label>
      <span class="buttons"><button class="quiet">${t("decisions.try")}</button></span>
      ${result ? html`<p class="big result">${t("decisions.instead", {
        name: result.what_if.service_class, close: percent(result.what_if.close, 1),
        admitted: number(result.admitted_instead), refused: number(result.refused_instead), same: number(result.same) })}</p>` : nothing}
    </form>`;
}

function draw() {
  const heads = ["at", "class", "tenant", "task", "verdict", "reason", "decided", "free", "prompt", "waited", "explain"];
  const numbers = ["decided", "free", "prompt", "waited"];
  return html`
    ${view.problem ? html`<p role="alert" class="trouble panel">${trouble(view.problem)}</p>` : nothing}
    ${view.run ? runTree(view.run, { explain, close: hideRun }) : nothing}
    ${summary()}
    <section class="panel">
      <h1>${t("decisions.title")}</h1>
      ${filters()}
      ${view.left ? html`<p class="hint">${t("decisions.left", { n: number(view.left) })}</p>` : nothing}
      ${view.rows === null ? nothing : view.rows.length === 0 ? html`<p>${t("decisions.none")}</p>` : html`
        <div class="scroll"><table class="cards dense">
          <thead><tr>${heads.map((each) => html`<th class=${numbers.includes(each) ? "number" : ""}>${each === "explain" ? "" : t(`decisions.${each}`)}</th>`)}</tr></thead>
          <tbody>${view.rows.map(row)}</tbody></table></div>`}
      ${view.more ? html`<footer><button type="button" class="quiet" @click=${loadMore}>${t("form.more")}</button></footer>` : nothing}
    </section>`;
}

export const decisions = { draw, enter: refresh, leave };
