// The page: its parts, its addresses and its keys.
import { h, $, clock, pathOf, plural, span } from "./dom.js";
import { Data, get, now } from "./data.js";
import { Table } from "./table.js";
import { One } from "./one.js";
import { services } from "./services.js";
import { nodes, factsOf, OneNode } from "./nodes.js";
import { Log } from "./log.js";
import { bars } from "./spark.js";
import * as explain from "./explain.js";

const { page: about } = await first();
const ofRelay = about === "relay";
const kind = ofRelay ? nodes : services;
const pages = ofRelay ? ["nodes"] : ["services", "explain", "changes"];
if (ofRelay) becomeRelay();

const data = new Data(kind);
const one = ofRelay ? new OneNode(data, close) : new One(data, close);
const table = new Table(data, open, filtered);
const log = ofRelay ? null : new Log(data, logged);
if (!ofRelay) explain.setUp();

const drawn = (what, draw) => { data.addEventListener(what, draw); draw(); };

drawn("status", health);
drawn("connection", connection);
drawn("changes", pulse);
drawn("counted", () => document.body.classList.toggle("counted", data.counted));
setInterval(pulse, 5000);
setInterval(health, 30_000);
data.addEventListener(ofRelay ? "rows" : "round", health);

/** first asks what the page is about, until there is an answer. */
async function first() {
  for (;;) {
    const status = await get("status").catch(() => null);
    if (status) return status;
    await new Promise((done) => setTimeout(done, 1000));
  }
}

/** becomeRelay makes the page one of nodes, which has a list only. */
function becomeRelay() {
  document.body.classList.add("relay");
  for (const e of document.querySelectorAll('[data-page="explain"], [data-page="changes"], .of-services')) e.remove();
  const link = $('nav [data-page="services"]'), section = $('section[data-page="services"]');
  link.dataset.page = section.dataset.page = "nodes";
  link.textContent = "Nodes";
  link.href = "#/nodes";
  section.ariaLabel = $("#grid").ariaLabel = "Nodes";
  $("#rows").ariaLabel = "Nodes: j and k move, Enter opens";
  $("#one").ariaLabel = "One node";
  $("#filter").placeholder = "Filter by name, dataplane, address or note";
}

/** roundOf is what the newest round of a lab came to. */
function roundOf(round) {
  const flows = Object.values(round.services), sum = (of) => flows.reduce((n, f) => n + (of(f) ?? 0), 0), faulty = sum((f) => f.faulty);
  return [`${plural(sum((f) => f.connections), "connection")} in the last round`, faulty ? `${plural(faulty, "path")} not as they must be` : "all as they must be"];
}

/** health says in one line how the process is doing. */
function health() {
  const s = data.status;
  if (!s) return;
  const faults = (s.problems ?? []).filter((p) => p.fault).length + (s.healthy ? 0 : 1);
  const fleet = ofRelay ? factsOf(data.rows.values()) : null;
  const [how, word] = data.lost ? ["quiet", data.crowded ? "not kept up to date" : "not answering"] : faults ? ["bad", "unhealthy"] : s.failed || s.problems || fleet?.worst === "warn" ? ["warn", "healthy, with problems"] : ["good", "healthy"];
  const programs = s.mode !== "none";
  const name = s.node || (ofRelay ? "relay" : "node");
  const up = `up ${span(Math.max(0, (now() - new Date(s.started)) / 1000))}`;
  const facts = fleet ? [...fleet.facts, s.revision ? `revision ${s.revision}` : "", up, s.version].filter(Boolean) : [
    programs ? s.mode : "serves states",
    s.revision === 0 ? "waiting for all objects" : !programs || s.applied === s.revision ? `revision ${s.revision}` : `revision ${s.applied} of ${s.revision}`,
    s.failed ? `${plural(s.failed, "Service")} not programmed` : "",
    s.pendingSince ? `an update has been waiting since ${clock(s.pendingSince)}` : "",
    `${plural(s.services, "Service")} routed`,
    s.edge ? `edge: ${plural(s.edge.ports, "port")} handed over${s.edge.left ? `, ${s.edge.left} left to nftables` : ""}${s.edge.draining ? `, ${plural(s.edge.draining, "frontend")} draining` : ""}` : "",
    ...(data.round ? roundOf(data.round) : []),
    up,
    s.version,
  ].filter(Boolean);
  $("#health").replaceChildren(h("span", { class: `dot ${how}` }), h("b", {}, name), " is ", h("span", { class: how }, word), h("span", { class: "muted facts" }, ` · ${facts.join(" · ")}`));
  document.title = `${faults && !data.lost ? "✗ " : ""}${name} · Switchyard`;
  $("#problems").hidden = !s.problems;
  $("#problems").replaceChildren(...grouped(s.problems ?? []).slice(0, 20).map(([p, n]) => h("li", { class: p.fault ? "bad" : "warn" }, h("b", {}, p.part), `: ${p.message}`, n > 1 && h("span", { class: "muted" }, ` (${n} times)`))));
}

/** grouped has problems in order, faults first and then by their part, and equal ones once with their number. */
function grouped(problems) {
  const counts = new Map();
  for (const p of problems) {
    const key = JSON.stringify([!p.fault, p.part, p.message]);
    counts.set(key, [p, (counts.get(key)?.[1] ?? 0) + 1]);
  }
  return [...counts].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, group]) => group);
}

/** connection says when the process does not answer. */
function connection() {
  $("#offline").hidden = !data.lost;
  const why = data.crowded ? "Too many pages of this process are open: close one. This one has not been kept up to date" : "The process has not answered";
  $("#offline").textContent = data.lost ? `${why} since ${clock(data.lost)}. What is shown is from before; the page tries again.` : "";
  document.body.classList.toggle("lost", Boolean(data.lost));
  health();
}

/** pulse draws the changes of the last two minutes. */
function pulse() {
  if (ofRelay) return;
  const counts = new Array(24).fill(0), end = now();
  for (const c of data.changes) {
    const back = Math.floor((end - new Date(c.at)) / 5000);
    if (back < 24) counts[23 - Math.max(0, back)] += (c.changed ?? 0) + (c.removed ?? 0) + (c.repaired ?? 0);
  }
  const sum = counts.reduce((a, b) => a + b, 0);
  $("#pulse").replaceChildren(bars(counts, 96, 22), h("figcaption", {}, `${(sum / 120).toFixed(sum > 0 && sum < 12 ? 2 : 1)} changes/s`));
}

/** filtered has the address name the filter and the order of the list. */
function filtered() {
  const query = table.query();
  history.replaceState(null, "", (location.hash || `#/${kind.path}`).split("?")[0] + query);
  shown = location.hash;
  listLink(query);
}

/** logged has the address name the kind and the order of the log. */
function logged() {
  history.replaceState(null, "", `#/changes${log.query()}`);
  shown = location.hash;
}

/** listLink has the link to the list keep its filter and order. */
function listLink(query) {
  $(`nav [data-page="${kind.path}"]`).href = `#/${kind.path}${query}`;
}

let shown; // the address that route has shown

/** route shows what the address names: #/services, #/services/NAMESPACE/NAME, #/explain?from=…&to=…, #/changes; of a relay #/nodes, #/nodes/NAME.
 * A list also has ?q=FILTER&show=KIND&sort=COLUMN, and COLUMN- for the other direction. */
function route() {
  shown = location.hash;
  const [path, query] = location.hash.slice(2).split("?");
  const [page = kind.path, ...rest] = path.split("/").filter(Boolean).map(decoded);
  const known = pages.includes(page) ? page : kind.path;
  if (known === kind.path) {
    table.restore(new URLSearchParams(query));
    listLink(table.query());
  }
  for (const section of document.querySelectorAll("section")) section.hidden = section.dataset.page !== known;
  for (const link of document.querySelectorAll("nav a")) link.toggleAttribute("aria-current", link.dataset.page === known);
  const key = known === kind.path && rest.length === (ofRelay ? 1 : 2) ? rest.join("/") : null;
  if (known === "changes") log.restore(new URLSearchParams(query));
  one.show(key);
  if (key) table.select(key);
  if (known === "explain") explain.ask(new URLSearchParams(query));
}

/** decoded is a part of an address, as it is if nobody can have encoded it. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function open(key) {
  go(`#/${kind.path}/${pathOf(key)}${table.query()}`);
  $("#one").focus({ preventScroll: true });
}

function close() {
  go(`#/${kind.path}${table.query()}`);
  $("#rows").focus({ preventScroll: true });
}

/** go shows an address at once: the browser says only later that it has changed, and until then the next key would be for what was shown before. */
function go(hash) {
  location.hash = hash;
  route();
}

/** escape closes what is open, or clears the filter. */
function escape() {
  if (one.key) return close();
  if (table.clear() || document.activeElement === $("#filter")) {
    $("#rows").focus({ preventScroll: true });
  }
}

const keys = {
  "/": () => { if (location.hash.startsWith("#/explain") || location.hash.startsWith("#/changes")) go(`#/services${table.query()}`); $("#filter").focus(); $("#filter").select(); },
  j: () => table.move(1),
  k: () => table.move(-1),
  Enter: () => table.selected && open(table.selected),
  e: () => !ofRelay && table.selected && go(`#/explain?from=node&to=${encodeURIComponent(`svc/${table.selected}`)}`),
  "?": () => $("#help").showModal(),
  ...Object.fromEntries(pages.map((page, i) => [i + 1, () => go(`#/${page}${page === kind.path ? table.query() : ""}`)])),
};

document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || $("#help").open) return;
  if (e.key === "Escape") return escape();
  const typing = e.target.matches("input");
  if (e.target.id === "filter" && (e.key === "Enter" || e.key === "ArrowDown")) {
    e.preventDefault();
    $("#rows").focus({ preventScroll: true });
    table.move(table.selected ? 0 : 1);
    return;
  }
  if (typing || (e.key === "Enter" && e.target.matches("button, a"))) return;
  const act = keys[e.key];
  if (!act) return;
  e.preventDefault();
  act();
});
$("#help-button").addEventListener("click", () => $("#help").showModal());
window.addEventListener("hashchange", () => location.hash !== shown && route());
route();
data.start();
