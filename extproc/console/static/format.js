// Numbers and times as people of either language write them.

import { store } from "./store.js";

const made = new Map();

function formatter(kind, options) {
  const key = store.language + kind + JSON.stringify(options);
  if (!made.has(key)) made.set(key, new Intl[kind](store.language, options));
  return made.get(key);
}

const NOTHING = "–";

export function number(value, digits = 0) {
  if (value === null || value === undefined) return NOTHING;
  return formatter("NumberFormat", { maximumFractionDigits: digits }).format(value);
}

export function short(value) {
  if (value === null || value === undefined) return NOTHING;
  const options = { notation: "compact", maximumFractionDigits: 1 };
  return formatter("NumberFormat", options).format(value);
}

export function percent(value, digits = 0) {
  if (value === null || value === undefined) return NOTHING;
  const options = { style: "percent", maximumFractionDigits: digits };
  return formatter("NumberFormat", options).format(value);
}

// A rate: small ones with a digit, so that 0.3/s is not shown as nothing.
export function rate(value) {
  return number(value, value > 0 && value < 9.95 ? 1 : 0);
}

export function seconds(value) {
  if (value === null || value === undefined) return NOTHING;
  return `${number(value, value < 10 ? 1 : 0)} s`;
}

export function clock(at) {
  const options = { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false };
  return at ? formatter("DateTimeFormat", options).format(new Date(at)) : NOTHING;
}

export function moment(at) {
  const options = { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false };
  return at ? formatter("DateTimeFormat", options).format(new Date(at)) : NOTHING;
}

export function day(at) {
  const options = { year: "numeric", month: "short", day: "numeric" };
  return at ? formatter("DateTimeFormat", options).format(new Date(at)) : NOTHING;
}
