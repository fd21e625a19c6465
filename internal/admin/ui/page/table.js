// The list: Services, or nodes. Only the rows in sight are elements: it is as quick with 10,000 rows as with ten.
import { h, $, plural } from "./dom.js";

const overscan = 8;

export class Table {
  #data;
  #shown = [];
  #kind;
  #sort;
  #selected = null; // a key
  #drawing = false;
  #onOpen;

  constructor(data, onOpen) {
    this.#data = data;
    this.#kind = data.kind;
    this.#sort = { column: data.kind.sort, down: false };
    this.#onOpen = onOpen;
    this.#head();
    $("#filter").addEventListener("input", () => { $("#rows").scrollTop = 0; this.refresh(); });
    $("#rows").addEventListener("scroll", () => this.#later(), { passive: true });
    $("#rows").addEventListener("keydown", (e) => this.#key(e));
    new ResizeObserver(() => this.#later()).observe($("#rows"));
    data.addEventListener("rows", () => this.refresh());
    data.follow(() => this.visible().map(this.#kind.keyOf));
    setInterval(() => this.#later(), 5000); // time goes on in small pictures
    this.refresh();
  }

  get selected() { return this.#selected; }

  #head() {
    $("#head").replaceChildren(...this.#kind.columns.map((c, i) => h("span", { role: "columnheader", class: `c${i}`, "aria-sort": this.#sort.column !== i ? "none" : this.#sort.down ? "descending" : "ascending" },
      h("button", { type: "button", "aria-label": `Sort by ${c.spoken ?? c.name}`, onclick: () => this.#sortBy(i) }, c.name))));
  }

  #sortBy(column) {
    this.#sort = { column, down: this.#sort.column === column && !this.#sort.down };
    this.#head();
    this.refresh();
  }

  /** refresh selects and sorts anew. */
  refresh() {
    const { keyOf, columns, noun } = this.#kind;
    const terms = $("#filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const all = [...this.#data.rows.values()];
    const { column, down } = this.#sort;
    const ranked = (terms.length ? all.filter((r) => this.#matches(r, terms)) : all).map((r) => [columns[column].of(r), keyOf(r), r]);
    const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    ranked.sort((a, b) => (down ? -1 : 1) * compare(a[0], b[0]) || compare(a[1], b[1]));
    this.#shown = ranked.map((r) => r[2]);
    const total = this.#data.rows.size;
    const count = terms.length ? `${this.#shown.length.toLocaleString("en")} of ${plural(total, noun)}` : plural(total, noun);
    if ($("#count").textContent !== count) $("#count").textContent = count;
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
    $("#head").style.paddingRight = `${20 + $("#rows").offsetWidth - $("#rows").clientWidth}px`; // as wide as the scroll bar
    $("#grid").setAttribute("aria-rowcount", this.#shown.length + 1);
    const rows = [];
    for (let i = from; i < to; i++) {
      const row = this.#row(this.#shown[i], i);
      row.style.transform = `translateY(${i * tall}px)`;
      rows.push(row);
    }
    if (rows.length === 0) rows.push(h("p", { class: "empty" }, this.#data.lost ? "" : this.#data.loaded ? (this.#data.rows.size ? `No ${this.#kind.noun} matches the filter.` : `There are no ${this.#kind.noun}s.`) : "loading …"));
    space.replaceChildren(...rows);
    const at = this.#shown.findIndex((r) => this.#kind.keyOf(r) === this.#selected);
    if (at >= from && at < to) $("#rows").setAttribute("aria-activedescendant", `row-${at}`);
    else $("#rows").removeAttribute("aria-activedescendant");
  }

  #row(r, i) {
    const key = this.#kind.keyOf(r);
    return h("div", { role: "row", id: `row-${i}`, class: "row", "data-key": key, "aria-rowindex": i + 2, "aria-selected": key === this.#selected ? "true" : "false", onclick: () => { this.select(key); this.#onOpen(key); } },
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
