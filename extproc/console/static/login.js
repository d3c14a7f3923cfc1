// Logging in with a token of the control API.

import { html, nothing } from "./vendor/lit-html.js";
import { logIn } from "./api.js";
import { changed } from "./store.js";
import { t, trouble } from "./words.js";

let problem = null;
let busy = false;

async function submit(event, begin) {
  event.preventDefault();
  const field = event.target.elements.token;
  busy = true;
  changed();
  try {
    await logIn(field.value.trim());
    problem = null;
    begin();
  } catch (error) {
    problem = error;
  }
  field.value = "";
  busy = false;
  changed();
}

export function login({ begin, speak }) {
  return html`
    <main class="login">
      <form @submit=${(event) => submit(event, begin)}>
        <h1><img src="/static/icon.svg" alt=""> Tidegate</h1>
        <label>${t("login.token")}
          <input name="token" type="password" autocomplete="current-password" required maxlength="1024" autofocus>
        </label>
        ${problem ? html`<p role="alert" class="trouble">${trouble(problem)}</p>` : nothing}
        <button class="act" ?disabled=${busy}>${t("login.go")}</button>
        <p class="hint">${t("login.hint")}</p>
        <button type="button" class="quiet" @click=${speak}>${t("nav.language")}</button>
      </form>
    </main>`;
}
