// Graphs of the last 15 minutes, as the process has kept them.
import { h, clock, plural } from "./dom.js";

const span = 900_000; // milliseconds
const rates = [["connections", "new", "accent"], ["dropped", "dropped", "warn"], ["refused", "refused", "bad"]];

const text = (n) => (n >= 10 ? Math.round(n).toLocaleString("en") : n.toFixed(1).replace(/\.0$/, ""));

/** axes draws what graphs have in common: a box of a width with its times and its greatest number. */
function axes(width, height, end, most, label, ...children) {
  return h("svg", { class: "graph", width, height: height + 18, viewBox: `0 0 ${width} ${height + 18}`, role: "img", "aria-label": label },
    h("path", { class: "base", d: `M0 0.5H${width}M0 ${height + 0.5}H${width}` }), children.flat(),
    h("text", { x: 0, y: height + 14 }, clock(end - span)), h("text", { x: width, y: height + 14, "text-anchor": "end" }, clock(end)), h("text", { x: 4, y: 13 }, most));
}

/** connections draws how many new connections there were a second. */
export function connections(graph, width) {
  const height = 60, end = new Date(graph.end).getTime(), step = graph.step * 1000;
  const lists = rates.filter(([name]) => graph[name]), most = Math.max(1, ...lists.flatMap(([name]) => graph[name]));
  const x = (i) => (width * (1 - ((graph.known.length - i) * step) / span)).toFixed(1), y = (n) => (height - (n / most) * (height - 4)).toFixed(1);
  const paths = (lists.length ? lists : [rates[0]]).map(([name, , how]) => {
    let d = "";
    graph.known.forEach((known, i) => { if (known) d += `${i > 0 && graph.known[i - 1] ? "L" : "M"}${x(i)} ${y(graph[name]?.[i] ?? 0)}H${x(i + 1)}`; });
    return h("path", { class: `line ${how}`, d });
  });
  const newest = graph.known.lastIndexOf(true);
  const legend = newest < 0 ? "New connections: nothing is known yet" : "New connections per second";
  const now = lists.map(([name, word]) => `${text(Math.max(...graph[name]))} ${word} at most`).join(", ");
  return h("figure", { class: "graphs" }, h("figcaption", {}, legend, lists.map(([, word, how]) => h("span", { class: `key ${how}` }, word))), axes(width, height, end, text(most), `${legend}: ${now || "none"}`, paths));
}

/** inUse is how many endpoints were in use at each time, from who is in use now and who came and went. It ends now. */
function inUse(comings, used, now) {
  const since = new Date(comings.since).getTime(), samples = [[now, used.size]];
  const at = new Set(used);
  for (const c of [...comings.items].reverse()) {
    const time = new Date(c.at).getTime();
    if (time < since) break;
    samples.push([time, at.size]);
    if (c.up) at.delete(c.address);
    else at.add(c.address);
  }
  samples.push([since, at.size]);
  return samples.reverse();
}

/** endpoints draws how many endpoints were in use. */
export function endpoints(comings, used, width, now) {
  const height = 36, samples = inUse(comings, used, now), most = Math.max(1, ...samples.map((s) => s[1]));
  const x = (time) => Math.max(0, width * (1 - (now - time) / span)).toFixed(1), y = (n) => (height - (n / most) * (height - 4)).toFixed(1);
  const d = samples.map(([time, n], i) => (i === 0 ? `M${x(time)} ${y(n)}` : `H${x(time)}V${y(n)}`)).join(""); // a number is that from its time on
  const label = `Endpoints in use: ${used.size} now, ${Math.min(...samples.map((s) => s[1]))} to ${Math.max(...samples.map((s) => s[1]))} before`;
  return h("figure", { class: "graphs" }, h("figcaption", {}, "Endpoints in use"), axes(width, height, now, String(most), label, h("path", { class: "line good", d })));
}

/** strip draws when one endpoint was in use. */
export function strip(comings, address, isUsed, now) {
  const width = 90, height = 10, since = new Date(comings.since).getTime(), x = (time) => Math.max(0, width * (1 - (now - time) / span));
  const parts = [];
  let until = now, used = isUsed;
  const part = (from) => { if (used) parts.push(h("rect", { x: x(from).toFixed(1), y: 0, width: Math.max(1, x(until) - x(from)).toFixed(1), height })); until = from; };
  let changes = 0;
  for (const c of [...comings.items].reverse()) {
    const time = new Date(c.at).getTime();
    if (time < since) break;
    if (c.address !== address) continue;
    part(time);
    used = !c.up;
    changes++;
  }
  part(since);
  const label = `${isUsed ? "in use now" : "not in use now"}, ${plural(changes, "change")} since ${clock(since)}`;
  return h("svg", { class: "strip", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, h("title", {}, label), h("path", { class: "base", d: `M0 ${height - 0.5}H${width}` }), parts);
}
