// The websocket that keeps the state up to date. It says nothing; it is told.

import { whoAmI } from "./api.js";
import { changed, store } from "./store.js";

const KEPT = 900;
const LOGGED_OUT = 4401;

let socket = null;

export function connect() {
  if (socket !== null) return;
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  socket = new WebSocket(`${scheme}://${location.host}/live`);
  socket.onmessage = ({ data }) => take(JSON.parse(data));
  socket.onopen = () => {
    store.history = {}; // the first message brings all of it
  };
  socket.onclose = ({ code }) => {
    socket = null;
    store.connected = false;
    if (code === LOGGED_OUT) store.me = null;
    else if (store.me) setTimeout(again, 1000);
    changed();
  };
}

// The console may be gone, or be a new one that knows nobody.
async function again() {
  await whoAmI().catch(() => {});
  if (store.me) connect();
  changed();
}

export function disconnect() {
  socket?.close();
}

function take({ state, points, problem }) {
  store.connected = true;
  store.problem = problem;
  store.state = state;
  for (const [pool, newer] of Object.entries(points)) {
    const older = store.history[pool] ?? [];
    while (newer.length && older.length && older.at(-1)[0] >= newer[0][0]) older.pop();
    store.history[pool] = [...older, ...newer].slice(-KEPT);
  }
  changed();
}
