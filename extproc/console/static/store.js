// What is shown, in one place. Views read it; whoever changes it calls changed().

export const store = {
  me: undefined, // {who, role}; null: not logged in; undefined: not known yet
  language: localStorage.getItem("language") ?? document.documentElement.lang,
  route: "",
  connected: false, // the websocket
  problem: "", // why Tidegate's state is not known now
  state: null,
  history: {}, // points by pool, oldest first
  pool: "",
  dialog: null, // {view, ...}
  notice: null, // {text, kind}
};

let draw = () => {};
let asked = false;

export function onChange(render) {
  draw = render;
}

// Draws once for all changes until then. A timer, not an animation frame: a hidden page has none.
export function changed() {
  if (asked) return;
  asked = true;
  setTimeout(() => {
    asked = false;
    draw();
  }, 0);
}

let fading;

export function notify(text, kind = "done") {
  store.notice = { text, kind };
  clearTimeout(fading);
  fading = setTimeout(() => {
    store.notice = null;
    changed();
  }, kind === "done" ? 6000 : 15000);
  changed();
}

export function may(role) {
  const ladder = ["viewer", "operator", "admin"];
  return ladder.indexOf(store.me?.role) >= ladder.indexOf(role);
}

// The pool on view: the one chosen, else the first.
export function pool() {
  const pools = store.state?.pools ?? [];
  return pools.find((each) => each.name === store.pool) ?? pools[0];
}
