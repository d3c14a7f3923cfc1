// Who changed what, when, from what to what, and why.

import { html } from "./vendor/lit-html.js";
import { call } from "./api.js";
import { moment } from "./format.js";
import { changed } from "./store.js";
import { t, trouble } from "./words.js";

let entries = null;
let problem = null;

async function load() {
  try {
    ({ entries } = await call("AuditService/ListAudit", { limit: 200 }));
    problem = null;
  } catch (error) {
    problem = error;
  }
  changed();
}

// What differs, as [path, before, after]; the path is "" where a single value was changed.
function differences(before, after) {
  const [older, newer] = [before, after].map((text) => Object.fromEntries(leaves(JSON.parse(text || "null"))));
  return [...new Set([...Object.keys(older), ...Object.keys(newer)])]
    .filter((path) => older[path] !== newer[path])
    .map((path) => [path, older[path], newer[path]]);
}

function leaves(value, path = "") {
  if (value === null || typeof value !== "object") return [[path, value]];
  return Object.entries(value).flatMap(([key, inner]) => leaves(inner, path ? `${path}.${key}` : key));
}

const said = (value) => (value === undefined || value === null ? "–" : String(value));

function row(entry) {
  const changes = differences(entry.before, entry.after);
  const cell = (name, content) => html`<td data-name=${t(`audit.${name}`)}>${content}</td>`;
  return html`
    <tr>
      ${cell("when", moment(entry.at))}
      ${cell("who", html`<span><b>${entry.who}</b> <span class="role">${t(`role.${entry.role}`)}</span></span>`)}
      ${cell("what", html`<span><code>${entry.action}</code> ${entry.target}</span>`)}
      ${cell("change", html`<ul class="bare">${changes.map(([path, older, newer]) => html`<li><code>${path}</code> ${said(older)} → <b>${said(newer)}</b></li>`)}</ul>`)}
      ${cell("why", entry.reason)}
    </tr>`;
}

function draw() {
  const heads = ["when", "who", "what", "change", "why"];
  return html`
    <section class="panel">
      <h1>${t("audit.title")}</h1>
      ${problem ? html`<p role="alert" class="trouble">${trouble(problem)}</p>` : ""}
      ${entries === null ? (problem ? "" : html`<p>${t("form.loading")}</p>`) : entries.length === 0 ? html`<p>${t("audit.none")}</p>` : html`
        <div class="scroll"><table class="cards">
          <thead><tr>${heads.map((each) => html`<th>${t(`audit.${each}`)}</th>`)}</tr></thead>
          <tbody>${entries.map(row)}</tbody>
        </table></div>`}
    </section>`;
}

export const audit = { draw, enter: load };
