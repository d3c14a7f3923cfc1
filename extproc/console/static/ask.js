// The dialog before a change: what will be, why, who; and the refusal where it is refused.

import { html, nothing } from "./vendor/lit-html.js";
import { changed, notify, store } from "./store.js";
import { t, trouble } from "./words.js";

// Asks, and calls apply(reason) if the answer is yes; what that returns is told, its warnings too.
//   id: of the form; title, content: what will be; act: what the button says;
//   reason: given already, else it is asked for.
export function ask({ id, title, content, act, apply, reason }) {
  const asked = { reason: reason ?? "", busy: false, problem: null };
  const set = (values) => {
    Object.assign(asked, values);
    changed();
  };
  const close = () => {
    store.dialog = null;
    changed();
  };
  const submit = async (event) => {
    event.preventDefault();
    set({ busy: true, problem: null });
    try {
      const { text, warnings = [] } = await apply(asked.reason.trim());
      notify([text, ...warnings.map((each) => t("form.warning", { text: each }))].join(" "), warnings.length ? "warn" : "done");
      if (store.dialog === dialog) close();
    } catch (problem) {
      set({ busy: false, problem });
    }
  };
  const view = () => html`
    <form id=${id} @submit=${submit}>
      <h2>${title}</h2>
      ${content}
      ${reason === undefined ? html`<label>${t("form.reason")}
        <textarea name="reason" required maxlength="1000" rows="2" .value=${asked.reason}
          @input=${(event) => set({ reason: event.target.value })}></textarea></label>`
        : html`<blockquote>${reason}</blockquote>`}
      <p class="hint">${t("form.as", { who: store.me.who, role: t(`role.${store.me.role}`) })}</p>
      ${asked.problem ? html`<p role="alert" class="trouble">${trouble(asked.problem)}</p>` : nothing}
      <footer><button type="button" class="quiet" @click=${close}>${t("form.cancel")}</button>
        <button class="act danger" ?disabled=${asked.busy || !asked.reason.trim()}>${act}</button></footer>
    </form>`;
  const dialog = { view };
  store.dialog = dialog;
  changed();
}
