// What the page knows: it asks for all rows once, and then follows what changes.

const part = 1000;
const reloadPause = 60_000;
const refreshPause = 3_000;
const retryPause = 3_000;
const hiddenPause = 10_000; // after which a page that nobody sees lets go of its stream: browsers have six connections for all pages of a server
const mostQuery = 3_500; // characters of keys in one request: the server takes 4 KiB
const historySpan = 300_000;
const logLength = 256;

let ahead = 0; // milliseconds by which this machine's clock is ahead of the server's, to the second

/** now is the time by the clock of the server, whose times the page has. */
export const now = () => Date.now() - ahead;

/** get asks the server, and throws what it answers if that is an error. */
export async function get(path, query = {}) {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) for (const v of [value].flat()) if (v) search.append(key, v);
  const response = await fetch(`api/${path}?${search}`);
  const date = Date.parse(response.headers.get("Date"));
  if (date) ahead = Date.now() - date;
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

/** parts are lists of keys that each fit into a request. */
function* parts(keys) {
  let list = [], room = mostQuery;
  for (const key of keys) {
    const takes = encodeURIComponent(key).length + "key=&".length;
    if (takes > room && list.length > 0) {
      yield list;
      [list, room] = [[], mostQuery];
    }
    list.push(key);
    room -= takes;
  }
  if (list.length > 0) yield list;
}

/** Data is a copy of the server's rows, which are Services or nodes by their kind. It dispatches "status", "rows", "changes", "counted", "round" and "connection". */
export class Data extends EventTarget {
  kind;
  status = null;
  rows = new Map();
  history = new Map(); // by key: [time, number of the kind], oldest first
  changes = []; // newest first
  round = null; // the newest of a lab
  counted = false; // whether new connections are counted
  rates = {}; // by key: connections, refused and dropped a second
  loaded = false;
  lost = null; // since when there is no stream
  crowded = false; // whether that is because too many pages are open

  #source = null;
  #loading = false;
  #again = false; // all rows are to be asked for once more
  #seen = null; // while all rows are asked for: the keys of those that have come, by events too

  constructor(kind) {
    super();
    this.kind = kind;
  }

  start() {
    if (!document.hidden) this.#connect();
    setInterval(() => document.hidden || this.reload(), reloadPause);
    let leaving = null;
    document.addEventListener("visibilitychange", () => {
      clearTimeout(leaving);
      if (document.hidden) leaving = setTimeout(() => this.#leave(), hiddenPause);
      else if (!this.#source) this.#connect();
    });
  }

  /** follow keeps the rows up to date that keys() returns, also in what no event reports. */
  follow(keys) {
    setInterval(async () => {
      for (let list of parts(this.lost || document.hidden ? [] : keys().slice(0, 100))) {
        while (list.length > 0) {
          const answer = await get(this.kind.path, { key: list }).catch(() => null);
          if (answer === null) return;
          const end = answer.next ? list.indexOf(answer.next) : list.length; // the server answers a part at a time
          if (end <= 0) return;
          const found = new Set(answer.items.map(this.kind.keyOf));
          this.#merge(answer.items, list.slice(0, end).filter((key) => !found.has(key)));
          list = list.slice(end);
        }
      }
    }, refreshPause);
  }

  #leave() {
    this.#source?.close();
    this.#source = null;
  }

  #connect() {
    const source = this.#source = new EventSource("api/events");
    source.onopen = () => {
      this.lost = null;
      this.crowded = false;
      this.changes = [];
      this.#dispatch("connection");
      this.reload();
    };
    source.onmessage = (message) => this.#event(JSON.parse(message.data));
    source.onerror = async () => {
      this.lost ??= new Date();
      this.#dispatch("connection");
      if (source.readyState !== EventSource.CLOSED) return; // it tries again by itself
      setTimeout(() => this.#source === source && this.#connect(), retryPause);
      this.crowded = await get("status").then(() => true, () => false);
      if (this.lost) this.#dispatch("connection");
    };
  }

  #dispatch(what) {
    this.dispatchEvent(new Event(what));
  }

  #event(event) {
    if (event.status) {
      this.status = event.status;
      this.#dispatch("status");
    }
    if (event.changes) {
      this.changes = [...event.changes.reverse(), ...this.changes].slice(0, logLength);
      this.#dispatch("changes");
    }
    if (event.counted !== undefined) {
      this.counted = event.counted;
      if (!this.counted) event.rates = {};
      this.#dispatch("counted");
    }
    if (event.rates) {
      this.rates = event.rates;
      for (const [key, row] of this.rows) row.rate = this.rates[key];
      this.#dispatch("rows");
    }
    if (event.round) {
      this.round = event.round;
      for (const [key, row] of this.rows) row.flow = this.round.services[key];
      this.#dispatch("round");
      this.#dispatch("rows");
    }
    if (event.reload) this.reload();
    if (event.set || event.deleted) this.#merge(event.set ?? [], event.deleted ?? []);
  }

  #merge(set, deleted) {
    for (const row of set) this.#put(row);
    for (const key of deleted) this.rows.delete(key);
    this.#dispatch("rows");
  }

  #put(row) {
    const key = this.kind.keyOf(row);
    row.flow = this.round?.services[key];
    row.rate = this.rates[key];
    this.rows.set(key, row);
    this.#seen?.add(key);
    if (!this.kind.sample) return;
    const samples = this.history.get(key) ?? [];
    const number = this.kind.sample(row);
    if (samples.length === 0 || samples.at(-1)[1] !== number) samples.push([Date.now(), number]);
    while (samples.length > 1 && samples[1][0] < Date.now() - historySpan) samples.shift();
    this.history.set(key, samples);
  }

  /** reload asks for all rows, part by part, and a little later once more if that is asked for meanwhile, or fails. */
  async reload() {
    this.#again = true;
    if (this.#loading) return;
    this.#loading = true;
    while (this.#again && !this.lost && this.#source) {
      this.#again = false;
      await this.#load().catch(() => { this.#again = true; });
      if (this.#again) await new Promise((done) => setTimeout(done, retryPause));
    }
    this.#seen = null;
    this.#loading = false;
  }

  async #load() {
    this.#seen = new Set();
    let after = "";
    do {
      const answer = await get(this.kind.path, { limit: after === "" ? 100 : part, after });
      this.#merge(answer.items, []);
      after = answer.next;
    } while (after);
    this.#merge([], [...this.rows.keys()].filter((key) => !this.#seen.has(key)));
    this.#seen = null;
    for (const key of this.history.keys()) if (!this.rows.has(key)) this.history.delete(key);
    this.loaded = true;
    this.#dispatch("rows");
  }
}
