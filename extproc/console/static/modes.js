// The mode in big letters, and the switch: choose, say why, see what it means, confirm.

import { html, nothing } from "./vendor/lit-html.js";
import { call } from "./api.js";
import { clock, moment } from "./format.js";
import { changed, may, notify, store } from "./store.js";
import { t, trouble } from "./words.js";

const MODES = ["NORMAL", "PROTECT", "TRANSACTIONS_ONLY", "SHADOW"];

const CLOSING = ["PROTECT", "TRANSACTIONS_ONLY"];

const name = (mode) => mode.replace("MODE_", "");

export function band() {
  const { mode, at } = store.state;
  const closed = mode.closed_classes.join(", ");
  const set = mode.by && t("mode.by", { who: mode.by, when: moment(mode.at), reason: mode.reason });
  return html`
    <section class="band ${name(mode.mode)}">
      <h1 id="mode" data-mode=${name(mode.mode)}>${t(`mode.${name(mode.mode)}`)}</h1>
      <p>
        <span>${closed ? t("mode.closed", { classes: closed }) : t(`mode.${name(mode.mode)}.effect`)}</span>
        ${set ? html`<span class="set">${set}</span>` : nothing}
      </p>
      <time>${clock(at)}</time>
      <button class="act" id="switch" @click=${open} ?disabled=${!may("operator")}
        title=${may("operator") ? nothing : t("mode.viewer")}>${t("mode.switch")}</button>
    </section>`;
}

function open() {
  const now = name(store.state.mode.mode);
  const choice = now === "NORMAL" ? "TRANSACTIONS_ONLY" : "NORMAL";
  store.dialog = { view, now, choice, reason: "", evict: false, sure: false, busy: false, problem: null };
  changed();
}

function view() {
  return store.dialog.sure ? confirmation() : choice();
}

function choice() {
  const { now, choice, reason, evict } = store.dialog;
  const option = (mode) => html`
    <label class="option ${mode}">
      <input type="radio" name="mode" value=${mode} .checked=${mode === choice} ?disabled=${mode === now}
        @change=${() => set({ choice: mode })}>
      <b>${t(`mode.${mode}`)}</b> <span>${t(`mode.${mode}.effect`)}</span>
    </label>`;
  return html`
    <form id="mode-form" @submit=${next}>
      <h2>${t("mode.choose")}</h2>
      ${MODES.map(option)}
      ${CLOSING.includes(choice) ? html`
        <label class="check"><input type="checkbox" name="evict" .checked=${evict}
          @change=${(event) => set({ evict: event.target.checked })}> ${t("mode.evict")}</label>` : nothing}
      <label>${t("form.reason")}
        <textarea name="reason" required maxlength="1000" rows="2" .value=${reason}
          @input=${(event) => set({ reason: event.target.value })}></textarea></label>
      <footer><button type="button" class="quiet" @click=${close}>${t("form.cancel")}</button>
        <button class="act" ?disabled=${!reason.trim()}>${t("form.next")}</button></footer>
    </form>`;
}

function confirmation() {
  const { now, choice, reason, evict, busy, problem } = store.dialog;
  return html`
    <form id="mode-confirm" class="band-dialog ${choice}" @submit=${apply}>
      <h2>${t("mode.confirm", { from: t(`mode.${now}`), to: t(`mode.${choice}`) })}</h2>
      <p class="big">${t(`mode.${choice}.effect`)}</p>
      ${evict ? html`<p>${t("mode.evict")}</p>` : nothing}
      <blockquote>${reason}</blockquote>
      <p class="hint">${t("form.as", { who: store.me.who, role: t(`role.${store.me.role}`) })}</p>
      ${problem ? html`<p role="alert" class="trouble">${trouble(problem)}</p>` : nothing}
      <footer><button type="button" class="quiet" @click=${() => set({ sure: false })}>${t("form.back")}</button>
        <button class="act danger" ?disabled=${busy}>${t("mode.does", { to: t(`mode.${choice}`) })}</button></footer>
    </form>`;
}

function set(values) {
  Object.assign(store.dialog, values);
  changed();
}

function close() {
  store.dialog = null;
  changed();
}

function next(event) {
  event.preventDefault();
  set({ sure: true, problem: null, evict: store.dialog.evict && CLOSING.includes(store.dialog.choice) });
}

async function apply(event) {
  event.preventDefault();
  const asked = store.dialog;
  set({ busy: true, problem: null });
  try {
    const done = await call("ModeService/SetMode", {
      mode: `MODE_${asked.choice}`, reason: asked.reason, evict: asked.evict,
    });
    const told = [t("mode.done", { to: t(`mode.${asked.choice}`), turned: done.turned_away })];
    if (asked.evict) told.push(t("mode.evicted", { n: done.evicted }));
    told.push(...done.warnings.map((text) => t("form.warning", { text })));
    notify(told.join(" "), done.warnings.length ? "warn" : "done");
    if (store.dialog === asked) close();
  } catch (problem) {
    if (store.dialog === asked) set({ busy: false, problem });
  }
}
