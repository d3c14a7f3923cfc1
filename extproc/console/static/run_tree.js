// An agent's run as a tree: who split off what, and what became of each call.

import { html } from "./vendor/lit-html.js";
import { clock, number } from "./format.js";
import { familyOf } from "./reasons.js";
import { t } from "./words.js";

// Decisions of one run, oldest first, become tasks under the tasks that they were split off from.
// Callers name both: a parent may have made no call itself, and some may lead in a circle. So every
// task is shown once, and one that no other task leads to begins a tree of its own.
export function grow(decisions) {
  const tasks = new Map();
  const task = (name) => {
    if (!tasks.has(name)) tasks.set(name, { name, parent: "", calls: [], children: [] });
    return tasks.get(name);
  };
  for (const each of decisions) {
    const here = task(each.run_task);
    here.calls.push(each);
    if (each.run_parent) here.parent ||= task(each.run_parent).name;
  }
  const all = [...tasks.values()];
  const placed = new Set();
  const place = (each) => {
    placed.add(each);
    each.children = all.filter((other) => other.parent === each.name && other.parent !== "" && !placed.has(other)).map(place);
    return each;
  };
  const roots = all.filter((each) => each.parent === "").map(place);
  for (const each of all) if (!placed.has(each)) roots.push(place(each));
  return roots;
}

// A call that waited was decided about twice; what came of it counts.
function latest(decisions) {
  return [...new Map(decisions.map((each) => [each.id, each])).values()];
}

function call(each, explain) {
  const why = each.verdict === "admit" ? "" : t(`reason.${each.reason}`);
  return html`
    <li class="call ${each.verdict}"><i class="dot ${familyOf(each.reason)}"></i><b class="verdict">${t(`verdict.${each.verdict}`)}</b>
      ${why} <small>${clock(each.at)} · ${t("run.tokens", { n: number(each.prompt_tokens) })}</small>
      <button type="button" class="quiet small" @click=${() => explain(each.id)}>${t("decisions.why")}</button></li>`;
}

function branch(task, explain) {
  return html`
    <li><b class="task">${task.name || t("run.unnamed")}</b>
      <ul>${task.calls.length ? task.calls.map((each) => call(each, explain)) : html`<li class="hint">${t("run.noCall")}</li>`}
        ${task.children.map((each) => branch(each, explain))}</ul></li>`;
}

// The panel of a run, {name, tenant, decisions}; `explain` is called with a call's id, `close` when the
// panel is to go.
export function runTree(run, { explain, close }) {
  const calls = latest(run.decisions);
  const count = (...verdicts) => number(calls.filter((each) => verdicts.includes(each.verdict)).length);
  return html`
    <section class="panel" id="run">
      <h1>${t("run.title", { name: run.name })}
        <span class="buttons"><button type="button" class="quiet small" @click=${close}>${t("form.close")}</button></span></h1>
      <p class="hint">${t("run.counted", { tenant: run.tenant, n: number(calls.length), merged: count("merge"), refused: count("shed", "reject") })}</p>
      <ul class="tree">${grow(calls).map((each) => branch(each, explain))}</ul>
    </section>`;
}
