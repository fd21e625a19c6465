// The list: Services, or nodes. Only the rows in sight are elements: it is as quick with 10,000 rows as with ten.
import { h, $, plural } from "./dom.js";
import { compare, heads, sortOf, sortText, turned } from "./sort.js";

const overscan = 8;

export class Table {
  #data;
  #shown = [];
  #kind;
  #sort;
  #selected = null; // a key
  #drawing = false;
  #show = ""; // the id of one of the kind's filters
  #onOpen;
  #onState;

  /** onOpen is called with the key of a row, onState when the filter or the order has changed. */
  constructor(data, onOpen, onState) {
    this.#data = data;
    this.#kind = data.kind;
    this.#sort = { column: data.kind.sort, down: false };
    this.#onOpen = onOpen;
    this.#onState = onState;
    this.#head();
    $("#filter").addEventListener("input", () => this.#changed());
    $("#rows").addEventListener("scroll", () => this.#later(), { passive: true });
    $("#rows").addEventListener("keydown", (e) => this.#key(e));
    new ResizeObserver(() => this.#later()).observe($("#rows"));
    data.addEventListener("rows", () => this.refresh());
    data.follow(() => this.visible().map(this.#kind.keyOf));
    setInterval(() => this.#later(), 5000); // time goes on in small pictures
    this.refresh();
  }

  get selected() { return this.#selected; }

  /** query is the filter and the order, as part of an address. */
  query() {
    const q = new URLSearchParams(), sort = sortText(this.#sort, this.#kind.sort);
    if ($("#filter").value) q.set("q", $("#filter").value);
    if (this.#show) q.set("show", this.#show);
    if (sort) q.set("sort", sort);
    return q.size ? `?${q}` : "";
  }

  /** restore takes the filter and the order from an address. */
  restore(q) {
    this.#sort = sortOf(q.get("sort"), this.#kind.columns, this.#kind.sort);
    this.#show = this.#kind.filters.find((f) => f.id === q.get("show"))?.id ?? "";
    if ($("#filter").value !== (q.get("q") ?? "")) $("#filter").value = q.get("q") ?? "";
    this.#head();
    this.refresh();
  }

  /** clear removes the filter, and reports whether there was one. */
  clear() {
    if (!this.#show && !$("#filter").value) return false;
    $("#filter").value = this.#show = "";
    this.#changed();
    return true;
  }

  #changed() {
    $("#rows").scrollTop = 0;
    this.refresh();
    this.#onState();
  }

  #head() {
    heads($("#head"), this.#kind.columns, this.#sort, (c) => { this.#sort = turned(this.#sort, c.id); this.#head(); this.#changed(); });
  }

  /** summary draws how many rows have each kind of trouble; each part filters. */
  #summary() {
    const all = [...this.#data.rows.values()];
    const parts = this.#kind.filters.filter((f) => !f.counted || this.#data.counted).map((f) => [f, all.reduce((n, r) => n + (f.is(r) ? 1 : 0), 0)]);
    const key = JSON.stringify([this.#show, this.#data.counted, parts.map(([f, n]) => [f.id, n])]);
    if (this.#summarized === key) return;
    this.#summarized = key;
    const focused = document.activeElement?.dataset?.show;
    $("#summary").replaceChildren(...parts.map(([f, n]) => h("button", { type: "button", class: `chip ${n ? f.how : "quiet"}`, "data-show": f.id, "aria-pressed": f.id === this.#show ? "true" : "false",
      onclick: () => { this.#show = this.#show === f.id ? "" : f.id; this.#changed(); } }, h("b", {}, n.toLocaleString("en")), ` ${n === 1 ? f.one ?? f.name : f.name}`)));
    if (focused) $(`#summary [data-show="${focused}"]`)?.focus();
  }

  #summarized = "";

  /** refresh selects and sorts again. */
  refresh() {
    const { keyOf, columns, noun } = this.#kind;
    const terms = $("#filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const show = this.#kind.filters.find((f) => f.id === this.#show);
    const all = [...this.#data.rows.values()];
    const { column, down } = this.#sort, { of } = columns.find((c) => c.id === column);
    const ranked = all.filter((r) => (!show || show.is(r)) && (!terms.length || this.#matches(r, terms))).map((r) => [of(r), keyOf(r), r]);
    ranked.sort((a, b) => (down ? -1 : 1) * compare(a[0], b[0]) || compare(a[1], b[1]));
    this.#shown = ranked.map((r) => r[2]);
    const total = this.#data.rows.size;
    const count = terms.length || show ? `${this.#shown.length.toLocaleString("en")} of ${plural(total, noun)}` : plural(total, noun);
    const known = this.#data.loaded || total > 0;
    if ($("#count").textContent !== count) $("#count").textContent = known ? count : "";
    if (known) this.#summary();
    this.#later();
  }

  #matches(r, terms) {
    const text = this.#kind.text(r).toLowerCase();
    return terms.every((t) => text.includes(t));
  }

  #later() {
    if (this.#drawing) return;
    this.#drawing = true;
    requestAnimationFrame(() => { this.#drawing = false; this.#draw(); });
  }

  #height() { return parseFloat(getComputedStyle($("#rows")).getPropertyValue("--row")); }

  #makeRoom() { $("#space").style.height = `${this.#shown.length * this.#height()}px`; }

  #range() {
    const box = $("#rows"), tall = this.#height();
    return [Math.max(0, Math.floor(box.scrollTop / tall) - overscan), Math.min(this.#shown.length, Math.ceil((box.scrollTop + box.clientHeight) / tall) + overscan)];
  }

  /** visible are the rows in sight. */
  visible() {
    return this.#shown.slice(...this.#range());
  }

  #draw() {
    if ($("#rows").clientHeight === 0) return; // another page is shown
    this.#makeRoom();
    const tall = this.#height(), [from, to] = this.#range();
    const space = $("#space");
    $("#head").style.paddingRight = `${parseFloat(getComputedStyle($("#head")).paddingLeft) + $("#rows").offsetWidth - $("#rows").clientWidth}px`; // as wide as the scroll bar
    $("#grid").setAttribute("aria-rowcount", this.#shown.length + 1);
    const rows = [];
    for (let i = from; i < to; i++) {
      const row = this.#row(this.#shown[i], i);
      row.style.transform = `translateY(${i * tall}px)`;
      const drawn = space.children[i - from];
      rows.push(drawn?.isEqualNode(row) ? drawn : row);
    }
    if (rows.length === 0) rows.push(h("p", { class: "empty" }, this.#data.lost ? "" : this.#data.loaded ? (this.#data.rows.size ? `No ${this.#kind.noun} matches the filter.` : `There are no ${this.#kind.noun}s.`) : "loading …"));
    // A click needs its row to stay from press to release.
    if (rows.length !== space.children.length || rows.some((row, i) => row !== space.children[i])) space.replaceChildren(...rows);
    const at = this.#shown.findIndex((r) => this.#kind.keyOf(r) === this.#selected);
    if (at >= from && at < to) $("#rows").setAttribute("aria-activedescendant", `row-${at}`);
    else $("#rows").removeAttribute("aria-activedescendant");
  }

  #row(r, i) {
    const key = this.#kind.keyOf(r);
    return h("div", { role: "row", id: `row-${i}`, class: `row ${this.#kind.howOf(r)}`, "data-key": key, "aria-rowindex": i + 2, "aria-selected": key === this.#selected ? "true" : "false", onclick: () => { this.select(key); this.#onOpen(key); } },
      this.#kind.cells(r, this.#data.history.get(key) ?? []));
  }

  /** select marks a row and brings it into sight. */
  select(key) {
    this.#selected = key;
    this.#later();
  }

  move(by) {
    if (this.#shown.length === 0) return;
    const at = this.#shown.findIndex((r) => this.#kind.keyOf(r) === this.#selected);
    const start = at >= 0 ? at : by > 0 ? -1 : this.#shown.length; // without a choice, before the first or behind the last
    const to = Math.min(this.#shown.length - 1, Math.max(0, start + by));
    const box = $("#rows"), tall = this.#height();
    this.#makeRoom(); // the list may have grown since it was drawn, and a box cannot be scrolled beyond its content
    if (to * tall < box.scrollTop) box.scrollTop = to * tall;
    if ((to + 1) * tall > box.scrollTop + box.clientHeight) box.scrollTop = (to + 1) * tall - box.clientHeight;
    this.select(this.#kind.keyOf(this.#shown[to]));
  }

  #key(e) {
    const page = Math.max(1, Math.floor($("#rows").clientHeight / this.#height()) - 1);
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[e.key];
    if (by === undefined || e.ctrlKey || e.metaKey || e.altKey) return;
    e.preventDefault();
    this.move(by === -Infinity ? -this.#shown.length : by === Infinity ? this.#shown.length : by);
  }
}
