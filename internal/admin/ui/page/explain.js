// Questions about connections, and the chain of reasons that answers them.
import { h, $ } from "./dom.js";
import { get } from "./data.js";

const heard = {
  rejected: "The client hears “connection refused” at once.",
  dropped: "The client hears nothing until it times out.",
  "not served": "The connection goes on as if there were no Services.",
};
const mostOfEach = 20;

/** setUp makes the form ask. What is asked is in the address, so that a question can be sent to others. */
export function setUp() {
  $("#ask").addEventListener("submit", (e) => {
    e.preventDefault();
    const form = new FormData(e.target);
    const hash = `#/explain?${new URLSearchParams({ from: form.get("from").trim(), to: form.get("to").trim() })}`;
    if (location.hash === hash) ask(new URLSearchParams(hash.split("?")[1]));
    else location.hash = hash;
  });
}

/** ask asks what the address says, if it does. */
export async function ask(question) {
  const from = question.get("from"), to = question.get("to");
  if (!from || !to) return;
  $("#ask").elements.from.value = from;
  $("#ask").elements.to.value = to;
  $("#answers").setAttribute("aria-busy", "true");
  try {
    const { answers } = await get("explain", { from, to });
    $("#answers").replaceChildren(...answers.map(answer));
  } catch (error) {
    const text = error instanceof TypeError ? "The process does not answer. Ask again when it does." : error.message;
    $("#answers").replaceChildren(h("p", { class: "remark bad" }, text));
  }
  $("#answers").removeAttribute("aria-busy");
}

function step(name, how, ...children) {
  return h("li", { class: how }, h("h3", {}, name), ...children);
}

function answer(a) {
  const good = a.verdict === "forwarded";
  const who = a.client.address && !a.from.includes(a.client.address) ? `${a.from} (${a.client.address})` : a.from;
  return h("article", { class: "answer" },
    h("p", { class: "question" }, who, " → ", a.to, h("span", { class: "muted" }, `, on node ${a.node}`)),
    h("p", { class: `verdict ${good ? "good" : "bad"}` }, h("b", {}, a.verdict), ": ", a.because),
    a.remedy && h("p", { class: "remark" }, h("b", {}, "Try: "), a.remedy),
    heard[a.verdict] && h("p", { class: "muted" }, heard[a.verdict]),
    h("ol", { class: "chain" },
      a.client.class && step("client", "", h("p", {}, `${a.client.class}: ${a.client.why}`)),
      a.frontend && step("frontend", "", h("p", {}, `${a.frontend.kind} `, h("span", { class: "mono" }, `${a.frontend.address}/${a.frontend.protocol}`), ` of Service ${a.service}${a.frontend.port ? `, port ${a.frontend.port}` : ""}`)),
      (a.policies ?? []).map((p) => step("policy", "", h("p", {}, h("b", {}, p.name.includes(" ") ? p.name : `${p.name} ${p.value}`), `: ${p.text}`))),
      a.edge && step("edge", "", h("p", {}, `slot ${a.edge.slot} of ${a.edge.slots}, node ${a.edge.node}${a.edge.earlier ? ` (before: ${a.edge.earlier.join(", ")})` : ""}; answers go from ${a.edge.node} directly to the client`)),
      a.endpoints && step("endpoints", a.endpoints.some((e) => e.gets) ? "good" : "bad", endpoints(a.endpoints)),
      a.slices && step("slices", "", h("ul", {}, a.slices.slice(0, mostOfEach).map((s) => h("li", {}, `EndpointSlice ${s.name}: ${s.text}`)))),
      a.source && step("source", "", h("p", {}, `the server sees ${a.source}`)),
      a.wayBack && step("way back", "", h("p", {}, a.wayBack)),
      a.kernel && kernel(a.kernel)),
    (a.notes ?? []).map((n) => h("p", { class: "muted" }, n)));
}

function endpoints(list) {
  const sorted = [...list].sort((a, b) => b.gets - a.gets);
  const more = sorted.length - 2 * mostOfEach;
  return h("ul", { class: "plain" }, sorted.slice(0, 2 * mostOfEach).map((e) => h("li", { class: e.gets ? "good" : "bad" }, h("span", { class: "mark", "aria-label": e.gets ? "gets connections" : "gets none" }, e.gets ? "✓" : "✗"),
    h("span", { class: "mono" }, e.address), ` ${e.pod ? `pod ${e.pod} ` : ""}on ${e.node ? `node ${e.node}` : "no node"}${e.text ? `: ${e.text}` : ""}`)), more > 0 && h("li", { class: "muted" }, `and ${more} more`));
}

function kernel(k) {
  const wrong = k.differences?.length > 0;
  return step(`kernel (${k.dataplane})`, wrong ? "bad" : k.unread ? "" : "good",
    k.unread ? h("p", {}, `not read back: ${k.unread}`) : h("p", {}, wrong ? "differs from the state:" : `holds the same: ${k.verdict}`),
    wrong && h("ul", {}, k.differences.map((d) => h("li", { class: "bad" }, d))),
    k.objects && h("pre", {}, k.objects.join("\n")),
    k.connections && h("ul", { class: "plain" }, k.connections.slice(0, mostOfEach).map((c) => h("li", { class: "mono" }, `${c.client} → ${c.server}`))));
}
