// The two charts of the wallboard, as elements: <free-chart> and <flow-chart>. They draw themselves
// anew when they are given .data, or another size.

import { html, nothing, render, svg } from "./vendor/lit-html.js";
import { number, percent, rate } from "./format.js";
import { familyOf, FAMILIES } from "./reasons.js";
import { t } from "./words.js";

const SPANS = [3, 6, 15]; // minutes that a chart may show: as few as hold all there is
const BIN = 5; // seconds that one bar, or one point of a line, tells of

class Chart extends HTMLElement {
  connectedCallback() {
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this);
  }

  disconnectedCallback() {
    this.watcher.disconnect();
  }

  set data(data) {
    this.given = data;
    this.draw();
  }

  draw() {
    const [width, height] = [this.clientWidth, this.clientHeight];
    if (!this.given || !width || !height) return;
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    render(html`<svg width=${width} height=${height} role="img">${this.picture(width, height, rem)}</svg>`, this);
  }
}

function spanOf(points, now) {
  const age = points.length ? now - points[0][0] : 0;
  return SPANS.find((minutes) => minutes * 60 >= age) ?? SPANS.at(-1);
}

// Seconds of Unix time to pixels; the newest is at the right.
function timeScale(now, minutes, left, right) {
  return (at) => right - ((now - at) / (minutes * 60)) * (right - left);
}

function timeTicks(now, minutes, x, y) {
  return [2 / 3, 1 / 3, 0].map((part) => part * minutes).map((ago) => svg`
    <text class="tick" x=${x(now - ago * 60)} y=${y} text-anchor=${ago ? "middle" : "end"}>
      ${ago ? `−${t("board.minutes", { n: ago })}` : t("board.now")}</text>`);
}

// Runs of bars' worth of a value, each with its mean and its extremes; a run ends where nothing is known.
function runs(points, pick) {
  const found = [];
  for (const point of points) {
    const value = pick(point);
    if (value === null) continue;
    const at = point[0] - (point[0] % BIN);
    let bin = found.at(-1)?.at(-1);
    if (bin?.at !== at) {
      const follows = bin !== undefined && at - bin.at === BIN;
      bin = { at, sum: 0, count: 0, low: value, high: value };
      if (follows) found.at(-1).push(bin);
      else found.push([bin]);
    }
    bin.sum += value;
    bin.count += 1;
    bin.low = Math.min(bin.low, value);
    bin.high = Math.max(bin.high, value);
  }
  return found;
}

const mean = (bin) => bin.sum / bin.count;

function path(bins, pick, x, y) {
  return bins.map((bin) => `${x(bin.at + BIN / 2).toFixed(1)} ${y(pick(bin)).toFixed(1)}`).join("L");
}

// The free ratio over time, with the marks at which classes close. The scale is that of square roots,
// because what is decided is decided in the lowest fifth.
class FreeChart extends Chart {
  picture(width, height, rem) {
    const { points, classes, tightening, now } = this.given;
    const minutes = spanOf(points, now);
    const [left, right, top, bottom] = [3 * rem, width - 5 * rem, 0.7 * rem, height - 1.5 * rem];
    const x = timeScale(now, minutes, left, right);
    const y = (free) => bottom - Math.sqrt(Math.min(1, Math.max(0, free))) * (bottom - top);
    const predicted = runs(points, (each) => each[2]);
    const observed = runs(points, (each) => each[1]);
    const middle = (run) => `M${path(run, mean, x, y)}`;
    const spread = (run) => `M${path(run, (bin) => bin.high, x, y)}L${path([...run].reverse(), (bin) => bin.low, x, y)}Z`;
    const water = (run) => `M${x(run[0].at + BIN / 2)} ${bottom}L${path(run, mean, x, y)}L${x(run.at(-1).at + BIN / 2)} ${bottom}Z`;
    const grid = [0, 0.05, 0.2, 0.5, 1].map((free) => svg`
      <line class="grid" x1=${left} x2=${right} y1=${y(free)} y2=${y(free)} />
      <text class="tick" x=${left - 0.4 * rem} y=${y(free) + 0.3 * rem} text-anchor="end">${percent(free)}</text>`);
    return svg`
      <title>${t("board.waterline")}</title>
      ${grid}
      ${predicted.map((run) => svg`<path class="water" d=${water(run)} /><path class="spread" d=${spread(run)} />`)}
      ${marks(classes, tightening).map((mark) => drawMark(mark, left, right, y, rem))}
      ${observed.map((run) => svg`<path class="observed" d=${middle(run)} />`)}
      ${predicted.map((run) => svg`<path class="predicted" d=${middle(run)} />`)}
      ${timeTicks(now, minutes, x, height - 0.25 * rem)}`;
  }
}

// Where classes close; those that close at the same mark share it.
function marks(classes, tightening) {
  const found = new Map();
  for (const each of classes.filter(({ close }) => close > 0)) {
    const close = Math.min(1, each.close * tightening);
    const mark = found.get(close) ?? { close, open: 0, names: [], closed: false };
    mark.names.push(each.name);
    mark.open = Math.max(mark.open, Math.min(1, each.open * tightening));
    mark.closed ||= each.closed;
    found.set(close, mark);
  }
  return [...found.values()];
}

function drawMark({ close, open, names, closed }, left, right, y, rem) {
  const kind = closed ? "closed" : "";
  return svg`
    <rect class="reopening" x=${left} width=${right - left} y=${y(open)} height=${Math.max(0, y(close) - y(open))} />
    <line class="mark ${kind}" x1=${left} x2=${right} y1=${y(close)} y2=${y(close)} />
    <text class="mark-name ${kind}" x=${right + 0.4 * rem} y=${y(close) + 0.33 * rem}>${names.join(" ")} ${percent(close, 1)}</text>`;
}

// What one class was answered, bar by bar: admitted below, turned away above it by why; and under the
// line how many waited.
class FlowChart extends Chart {
  picture(width, height, rem) {
    const { points, index, now } = this.given;
    const minutes = spanOf(points, now);
    const [left, right, top] = [0, width, 1.1 * rem];
    const base = height - 1.2 * rem - (height - 2.3 * rem) * 0.22;
    const floor = height - 1.2 * rem;
    const x = timeScale(now, minutes, left, right);
    const bins = binned(points, index);
    const most = Math.max(1, ...bins.map((each) => each.total / BIN));
    const mostWaiting = Math.max(1, ...bins.map((each) => each.waiting));
    const barWidth = Math.max(1, (x(BIN) - x(0)) - 0.8);
    const bars = bins.map((bin) => {
      const wide = Math.max(0, Math.min(barWidth, right - x(bin.at))); // the newest is not over yet
      let y = base;
      const piece = (count, kind) => {
        const tall = (count / BIN / most) * (base - top);
        y -= tall;
        return svg`<rect class=${kind} x=${x(bin.at)} y=${y} width=${wide} height=${tall} />`;
      };
      const deep = (bin.waiting / mostWaiting) * (floor - base);
      return svg`
        ${bin.admitted ? piece(bin.admitted, "admitted") : nothing}
        ${FAMILIES.filter((each) => bin.refused[each]).map((each) => piece(bin.refused[each], each))}
        ${bin.waiting ? svg`<rect class="waiting" x=${x(bin.at)} y=${base + 1} width=${wide} height=${deep} />` : nothing}`;
    });
    return svg`
      <line class="grid" x1=${left} x2=${right} y1=${top} y2=${top} />
      <text class="tick" x="0" y=${top - 0.3 * rem}>${t("board.most", { n: rate(most) })}</text>
      ${bars}
      <line class="axis" x1=${left} x2=${right} y1=${base} y2=${base} />
      ${bins.some((each) => each.waiting) ? svg`<text class="tick" x="0" y=${height - 0.2 * rem}>${t("board.mostwaiting", { n: number(mostWaiting) })}</text>` : nothing}
      ${timeTicks(now, minutes, x, height - 0.2 * rem).slice(bins.some((each) => each.waiting) ? 1 : 0)}`;
  }
}

// A bin begins at a multiple of BIN, so that bars stand still while time goes on.
function binned(points, index) {
  const bins = new Map();
  for (const [at, , , , , classes] of points) {
    const [admitted, refused, waiting] = classes[index] ?? [0, {}, 0];
    const start = at - (at % BIN);
    let bin = bins.get(start);
    if (bin === undefined) bins.set(start, (bin = { at: start, admitted: 0, refused: {}, waiting: 0, total: 0 }));
    bin.admitted += admitted;
    bin.total += admitted;
    bin.waiting = Math.max(bin.waiting, waiting);
    for (const [reason, count] of Object.entries(refused)) {
      const family = familyOf(reason);
      bin.refused[family] = (bin.refused[family] ?? 0) + count;
      bin.total += count;
    }
  }
  return [...bins.values()];
}

customElements.define("free-chart", FreeChart);
customElements.define("flow-chart", FlowChart);
