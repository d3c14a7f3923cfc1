// The wallboard: one pool at a glance, for a room.

import { html, nothing, svg } from "./vendor/lit-html.js";
import "./charts.js";
import { clock, number, percent, rate, seconds, short } from "./format.js";
import { band } from "./modes.js";
import { familyOf } from "./reasons.js";
import { changed, pool, store } from "./store.js";
import { t } from "./words.js";

const RATE_SECONDS = 10;

function draw() {
  const { state, problem, connected } = store;
  if (!state) return html`<p class="lost" role="alert">${t("board.never")}</p>`;
  const shown = pool();
  return html`
    ${connected && !problem ? nothing : html`<p class="lost" role="alert">${t("board.lost", { when: clock(state.at) })}</p>`}
    ${state.draining ? html`<p class="lost" role="alert">${t("board.draining")}</p>` : nothing}
    ${band()}
    ${state.pools.length > 1 ? pools(shown) : nothing}
    ${shown ? onePool(shown) : nothing}`;
}

function pools(shown) {
  const choose = (name) => () => {
    store.pool = name;
    changed();
  };
  return html`<div class="pools" role="tablist" aria-label=${t("board.pool")}>${store.state.pools.map((each) => html`
    <button role="tab" aria-selected=${each === shown} class=${worst(each)} @click=${choose(each.name)}>
      ${each.name} <b>${percent(each.free_predicted)}</b></button>`)}</div>`;
}

function worst(shown) {
  if (shown.classes.some((each) => each.closed)) return "bad";
  return "";
}

function onePool(shown) {
  const points = store.history[shown.name] ?? [];
  const now = Date.parse(store.state.at) / 1000;
  const recent = sums(points, now, RATE_SECONDS);
  return html`
    <section class="tiles">${tiles(shown, recent)}</section>
    <div class="below">
    <section class="panel tide">
      <h2>${t("board.waterline")}
        <span class="legend"><i class="predicted"></i>${t("board.predicted")} <i class="observed"></i>${t("board.observed")}</span>
        ${shown.tightening > 1 ? html`<em>${t("board.tightened", { n: number(shown.tightening, 1) })}</em>` : nothing}</h2>
      <free-chart .data=${{ points, classes: shown.classes, tightening: shown.tightening, now }}></free-chart>
    </section>
    <section class="panel classes"><h2>${t("board.classes")}
      <span class="legend"><i class="admitted"></i>${t("board.admitted")} <i class="capacity"></i>${t("board.refused")} <i class="waiting"></i>${t("board.waiting")}</span></h2>
      ${shown.classes.map((each, index) => oneClass(each, index, points, now, recent))}</section>
    <section class="panel engines"><h2>${t("board.endpoints")}</h2>
      ${shown.endpoints.length ? html`<div class="grid">${shown.endpoints.map(endpoint)}</div>` : html`<p>${t("board.noendpoints")}</p>`}</section>
    </div>`;
}

// What a class was answered within the last seconds, by its index.
function sums(points, now, span) {
  const found = [];
  for (let at = points.length - 1; at >= 0 && points[at][0] > now - span; at -= 1) {
    points[at][5].forEach(([admitted, refused], index) => {
      const sum = (found[index] ??= { admitted: 0, refused: 0, reasons: {} });
      sum.admitted += admitted;
      for (const [reason, count] of Object.entries(refused)) {
        sum.refused += count;
        sum.reasons[reason] = (sum.reasons[reason] ?? 0) + count;
      }
    });
  }
  return found;
}

function tiles(shown, recent) {
  const admitted = recent.reduce((sum, each) => sum + each.admitted, 0);
  const refused = recent.reduce((sum, each) => sum + each.refused, 0);
  const longest = Math.max(...shown.classes.map((each) => each.longest_wait_seconds ?? -1));
  const tile = (id, name, value, under, kind = "") => html`
    <div class="tile ${kind}" id=${id}><h2>${name}</h2><strong>${value}</strong><span>${under}</span></div>`;
  return html`
    ${tile("free", html`${t("board.free")} <small>${t("board.predicted")}</small>`, percent(shown.free_predicted),
      `${t("board.observed")} ${percent(shown.free_observed)}`, worst(shown))}
    ${tile("inflight", t("board.inflight"), number(shown.in_flight), t("board.of", { n: number(shown.max_concurrency) }))}
    ${tile("waiting", t("board.waiting"), number(shown.queued), longest < 0 ? "" : t("board.longest", { s: seconds(longest) }),
      shown.queued ? "warn" : "")}
    ${tile("admitted", t("board.admitted"), rate(admitted / RATE_SECONDS), t("board.persecond"))}
    ${tile("refused", t("board.refused"), rate(refused / RATE_SECONDS),
      html`${t("board.persecond")}${admitted + refused ? html`${t("board.share", { p: percent(refused / (admitted + refused)) })}` : nothing}`,
      refused ? "bad" : "")}`;
}

function oneClass(each, index, points, now, recent) {
  const { admitted, refused } = recent[index] ?? { admitted: 0, refused: 0 };
  const reasons = Object.entries(sums(points, now, 60)[index]?.reasons ?? {}).sort((a, b) => b[1] - a[1]);
  const gate = each.closed_by_mode ? "closedmode" : each.closed ? "closed" : "open";
  return html`
    <article class="class" data-class=${each.name} data-gate=${gate}>
      <h3>${each.name} <span class="gate ${gate}">${t(`board.${gate}`)}</span></h3>
      <dl>
        <div class="admitted ${admitted ? "" : "zero"}"><dt>${t("board.admitted")}</dt><dd>${t("board.most", { n: rate(admitted / RATE_SECONDS) })}</dd></div>
        <div class="refused ${refused ? "" : "zero"}"><dt>${t("board.refused")}</dt><dd>${t("board.most", { n: rate(refused / RATE_SECONDS) })}</dd></div>
        <div class="waiting ${each.queued ? "" : "zero"}"><dt>${t("board.waiting")}</dt><dd>${number(each.queued)}</dd></div>
        <div><dt>${t("board.inflight")}</dt><dd>${number(each.in_flight)}<small>/${number(each.concurrency_limit)}</small></dd></div>
      </dl>
      <flow-chart .data=${{ points, index, now }}></flow-chart>
      <p class="reasons" title=${t("board.lastminute")}>${reasons.slice(0, 3).map(([reason, count]) => html`
        <span data-reason=${reason}><i class=${familyOf(reason)}></i>${t(`reason.${reason}`)} <b>${number(count)}</b></span>`)}</p>
    </article>`;
}

function endpoint(each) {
  const fresh = each.down ? "DOWN" : each.freshness.replace("FRESHNESS_", "");
  const promised = each.capacity_tokens ? each.promised_tokens / each.capacity_tokens : null;
  return html`
    <article class="engine ${fresh}">
      <h3>${each.address} <span class="gate ${fresh}">${t(`fresh.${fresh}`)}</span></h3>
      <svg class="kv" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
        <rect class="room" width="100" height="8" />
        <rect class="used" width=${100 * (each.kv_usage ?? 0)} height="8" />
        ${promised === null ? nothing : svg`<rect class="promised" x=${Math.min(99, 100 * promised)} width="1" height="8" />`}
      </svg>
      <p><b>${t("board.kv")} ${percent(each.kv_usage)}</b>
        <span>${t("board.promised")} ${promised === null ? short(each.promised_tokens) : percent(promised)}</span>
        <span>${t("board.running", { n: number(each.running) })}</span>
        <span>${t("board.queued", { n: number(each.waiting) })}</span></p>
      ${each.problem ? html`<p class="trouble">${each.problem}</p>` : nothing}
    </article>`;
}

export const board = { draw };
