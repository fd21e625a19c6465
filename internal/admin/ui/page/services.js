// What the list shows of a Service.
import { h, plural, words } from "./dom.js";
import { steps } from "./spark.js";

const keyOf = (row) => `${row.namespace}/${row.name}`;

const addresses = (r) => [...(r.clusterIPs ?? []), ...(r.externalIPs ?? [])];

const portText = (p) => `${p.port}${p.nodePort ? `:${p.nodePort}` : ""}/${p.protocol}`;

/** trouble is how bad a row is. */
function trouble(r) {
  if (r.flow?.faulty) return 5;
  if (r.problems) return 4;
  if (r.notRouted) return r.notRouted === "Headless" || r.notRouted === "ExternalName" ? 0.5 : 1;
  if (r.endpoints.used === 0) return 3;
  return r.endpoints.reasons ? 2 : 0;
}

/** note is what there is to say about a row, and how bad it is. */
function note(r) {
  if (r.flow?.faulty) return [`${r.flow.faulty} of ${plural(r.flow.paths, "path")} not as they must be: ${r.flow.fault}`, "bad"];
  if (r.problems) return [r.problems.length === 1 ? r.problems[0] : `${plural(r.problems.length, "problem")}: ${r.problems[0]}`, "bad"];
  if (r.notRouted) return [`not routed: ${words(r.notRouted)}`, "quiet"];
  const texts = Object.entries(r.endpoints.reasons ?? {}).map(([reason, n]) => `${n} ${words(reason)}`);
  if (r.endpoints.used === 0) return [texts.length ? `no endpoint in use: ${texts.join(", ")}` : "no endpoints", "bad"];
  if (texts.length === 0 && r.flow) return [`${plural(r.flow.connections, "connection")} in the last round`, "quiet"];
  const rate = r.rate ? `${r.rate.toFixed(r.rate < 10 ? 1 : 0)} new connections/s` : "";
  return [[rate, ...texts].filter(Boolean).join(", "), texts.length ? "warn" : "quiet"];
}

/** cells are what a row shows. */
function cells(r, history) {
  const key = keyOf(r), [text, how] = note(r), { used, all } = r.endpoints, ports = r.ports ?? [];
  const routed = !r.notRouted;
  const more = (list) => (list.length > 1 ? h("span", { class: "more" }, ` +${list.length - 1}`) : null);
  return [
    h("span", { role: "gridcell", class: "c0", title: key }, h("span", { class: "muted" }, `${r.namespace}/`), h("b", {}, r.name)),
    h("span", { role: "gridcell", class: "c1" }, r.type),
    h("span", { role: "gridcell", class: "c2 mono", title: addresses(r).join("\n") }, addresses(r)[0] ?? "–", more(addresses(r))),
    h("span", { role: "gridcell", class: "c3 mono", title: ports.map(portText).join("\n") }, ports.length ? portText(ports[0]) : "–", more(ports)),
    h("span", { role: "gridcell", class: "c4", title: `${used} of ${all} endpoints get new connections of this node` },
      routed && h("span", { class: `dot ${used === 0 ? "bad" : used < all ? "warn" : "good"}` }), routed ? h("span", { class: "number" }, `${used}/${all}`) : "–",
      routed && steps(history, 56, 16, 300_000)),
    h("span", { role: "gridcell", class: `c5 ${how}`, title: text }, text),
  ];
}

/** services is the list of a node or a lab. */
export const services = {
  noun: "Service",
  path: "services",
  keyOf,
  cells,
  columns: [
    { name: "Service", of: keyOf },
    { name: "Type", of: (r) => r.type },
    { name: "Address", of: (r) => addresses(r)[0] ?? "" },
    { name: "Ports", of: (r) => r.ports?.[0]?.port ?? 0 },
    { name: "Endpoints", of: (r) => r.endpoints.used },
    { name: "Note", of: (r) => -trouble(r), spoken: "Note, worst first" },
  ],
  sort: 0,
  sample: (r) => r.endpoints.used,
  text: (r) => [keyOf(r), r.type, ...addresses(r), ...(r.ports ?? []).map(portText), note(r)[0]].join(" "),
};
