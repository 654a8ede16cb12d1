// The live page: what the server tells, shown. It keeps no rules of the protocol: a card is where the server says it is.
//
// The stream is read with fetch, not EventSource, because a token belongs in a header and not in an address.
// On every connection the stream is opened first and the state is asked for second; what the stream says meanwhile
// waits, and is applied after the state. So nothing is missed, and what is applied twice ends as it should.

const FINISHED_SHOWN = 6;
const FINISHED_KEPT = 50; // in a lane: as many as the server lists
const EVENTS_SHOWN = 200;
const SESSIONS_SHOWN = 50; // at first, and each time that earlier ones are asked for
const RETRY = [500, 1000, 2000, 5000]; // milliseconds

const $ = (id) => document.getElementById(id);
const columns = $("lane").content.querySelectorAll(".column"); // one for each state, filled in by the server
const SAID = Object.fromEntries([...columns].map((c) => [c.dataset.state, c.querySelector("h3").textContent.toLowerCase()]));
const sessions = new Map(); // by id: { id, title, lane }
const prompts = new Map(); // by session id and seq: { seq, session_id, run_id, text, state, outcome, answer, card }
const client = crypto.randomUUID ? crypto.randomUUID() : fallbackId();
let workspace = null;
let token = sessionStorage.getItem("token");
let earlier = null; // the query for sessions that are not shown yet
let stream = null; // the AbortController of the open stream, and the only one that goes on

// --- asking

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(method, path, body) {
  const response = await fetch(`v1/${path}`, {
    method,
    headers: { ...(body && { "Content-Type": "application/json" }), ...authorization() },
    body: body && JSON.stringify(body),
  });
  const text = await response.text();
  let told = null;
  try {
    told = text ? JSON.parse(text) : null;
  } catch {
    // not JSON: the status says enough
  }
  if (!response.ok) throw new Refused(response.status, told?.message ?? `the server answered ${response.status}`);
  if (told && typeof told === "object") links.set(told, response.headers.get("Link"));
  return told;
}

const links = new WeakMap(); // of what was told: the header that says how to go on

/** The query for the page before this one, or null. */
const pageBefore = (list) => links.get(list)?.match(/<(\?[^>]*)>; *rel="?prev/)?.[1] ?? null;

const authorization = () => (token ? { Authorization: `Bearer ${token}` } : {});
const here = (rest) => `workspaces/${encodeURIComponent(workspace.id)}/${rest}`;
const inSession = (id, rest) => here(`agent/sessions/${encodeURIComponent(id)}/${rest}`);

/** Does what the user asked for, and shows what goes wrong. */
async function attempt(work) {
  try {
    const result = await work();
    complain(null);
    return result;
  } catch (error) {
    complain(error instanceof Refused ? error.message : `The server cannot be reached (${error.message}).`);
    if (error.status === 401) askForToken();
    return null;
  }
}

function complain(message) {
  $("problem").hidden = !message;
  $("problem").textContent = message ?? "";
}

// --- the stream

async function follow() {
  const mine = new AbortController();
  stream?.abort();
  stream = mine;
  let place = null;
  for (let failures = 0; stream === mine; failures += 1) {
    const attempted = new AbortController();
    mine.signal.addEventListener("abort", () => attempted.abort());
    try {
      const headers = { Accept: "text/event-stream", ...authorization(), ...(place && { "Last-Event-ID": place }) };
      const response = await fetch(`v1/${here("events")}?client_id=${client}`, { headers, signal: attempted.signal });
      if (!response.ok) throw new Refused(response.status, `the event stream was refused with ${response.status}`);
      failures = 0;
      const waiting = [];
      let apply = (event) => waiting.push(event);
      const snapshot = look().then(() => {
        waiting.forEach(happen);
        apply = happen;
        connection("live");
      });
      snapshot.catch(() => attempted.abort());
      for await (const { id, data } of eventsOf(response.body)) {
        place = id ?? place;
        if (data) apply({ id, data });
      }
    } catch (error) {
      if (stream !== mine) return;
      if (error.status === 401) return void askForToken();
      if (error.status === 404) return void attempt(open); // the workspace is gone
    }
    if (stream !== mine) return;
    connection("reconnecting");
    await new Promise((resolve) => setTimeout(resolve, RETRY[Math.min(failures, RETRY.length - 1)]));
  }
}

/** The events of a stream: { id, data }, either of which may be null. Lines end with LF, CRLF or CR; a piece may end
 * anywhere. */
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  let id = null;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (data.length || id) yield { id, data: data.length ? JSON.parse(data.join("\n")) : null };
        data = [];
        id = null;
      } else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      else if (line.startsWith("id:")) id = line.slice(3).trim();
    }
  }
}

/** Asks for everything that can be seen now. */
async function look() {
  const known = (await ask("GET", here(`sessions?limit=${SESSIONS_SHOWN}`))) ?? [];
  if (!sessions.size) offerEarlier(pageBefore(known));
  for (const session of known) showSession(session);
  const listed = await Promise.all([...sessions.keys()].map((id) => ask("GET", inSession(id, "prompts"))));
  const seen = new Set(listed.flat().map(key));
  for (const [k, prompt] of prompts) {
    if (!seen.has(k) && prompt.state !== "done") forget(prompt);
  }
  listed.flat().forEach((prompt) => showPrompt(prompt, { quietly: true }));
  if (!known.length) await ask("POST", here("sessions"), { title: "first session" }).then(showSession);
}

function happen({ id, data }) {
  const { type, payload: { type: verb, payload } = {} } = data;
  if (!payload) return;
  if (type === "prompt") showPrompt(payload);
  else if (type === "run_complete") showEnd(payload);
  else if (type === "message") showMessage(payload);
  else if (type === "session" && verb !== "deleted") showSession(payload);
  else if (type === "call") showMark(payload.session_id, payload.mark);
  const told = type === "prompt" && payload.state === "done" && payload.outcome !== "folded"; // by its run_complete
  if ((type !== "message" && !told) || $("every-update").checked) showEvent(id, type, payload);
}

function connection(state) {
  $("connection").textContent = state;
  $("connection").classList.toggle("live", state === "live");
}

// --- sessions

function offerEarlier(query) {
  earlier = query;
  $("earlier").hidden = !query;
}

/** Shows the sessions that were made before those that are shown. */
async function showEarlier() {
  const known = await ask("GET", here(`sessions${earlier}`));
  offerEarlier(pageBefore(known));
  for (const session of [...known].reverse()) showSession(session, { first: true });
  const listed = await Promise.all(known.map((s) => ask("GET", inSession(s.id, "prompts"))));
  listed.flat().forEach((prompt) => showPrompt(prompt, { quietly: true }));
}

function showSession(session, { first = false } = {}) {
  const known = sessions.get(session.id);
  if (known) {
    known.lane.querySelector("h2").textContent = session.title || session.id;
    if (session.mark) showMark(session.id, session.mark);
    return known;
  }
  const lane = $("lane").content.firstElementChild.cloneNode(true);
  const heading = lane.querySelector("h2");
  heading.id = `lane-${sessions.size + 1}`;
  heading.textContent = session.title || session.id;
  lane.setAttribute("aria-labelledby", heading.id);
  lane.dataset.session = session.id;
  const name = heading.textContent;
  lane.querySelector(".cancel").setAttribute("aria-label", `Cancel everything accepted so far in ${name}`);
  lane.querySelector(".clear").setAttribute("aria-label", `Clear the queue of ${name}`);
  lane.querySelector("input[name=prompt]").setAttribute("aria-label", `Prompt for ${name}`);
  for (const state of Object.keys(SAID)) {
    lane.querySelector(`.${state} ol`).setAttribute("aria-label", `${name}, ${SAID[state]}`);
  }
  const entry = { mark: 0, ...session, lane, forgotten: 0 };
  sessions.set(session.id, entry);
  if (first) $("lanes").prepend(lane);
  else $("lanes").append(lane);
  summarize(entry);
  return entry;
}

function summarize(session) {
  const mine = [...prompts.values()].filter((p) => p.session_id === session.id);
  const live = mine.filter((p) => p.state !== "done");
  const queued = live.filter((p) => p.state === "queued").length;
  session.lane.querySelector(".lane-state").textContent = !live.length ? "idle" : queued ? `busy, ${queued} queued` : "busy";
  const finished = mine.filter((p) => p.state === "done").sort((a, b) => b.seq - a.seq);
  finished.forEach((p, i) => (p.card.hidden = i >= FINISHED_SHOWN));
  const hidden = session.forgotten + finished.length - FINISHED_SHOWN;
  const note = session.lane.querySelector(".done .earlier");
  note.hidden = hidden <= 0;
  note.textContent = `and ${hidden} earlier`;
  finished.slice(FINISHED_KEPT).forEach(forget);
  session.forgotten += Math.max(0, finished.length - FINISHED_KEPT);
  drawMark(session);
}

// --- the mark

function showMark(id, mark) {
  const session = sessions.get(id);
  if (!session) return;
  session.mark = Math.max(session.mark, mark); // it only rises
  drawMark(session);
}

/** The mark as a line between the prompts that it separates; where all in a column are covered, below them. */
function drawMark({ id, lane, mark }) {
  const above = [...prompts.values()].some((prompt) => prompt.session_id === id && prompt.seq > mark);
  const note = lane.querySelector(".lane-mark");
  note.hidden = !mark;
  note.textContent = `mark ≤ #${mark}`;
  for (const list of lane.querySelectorAll(".columns ol")) {
    const line = list.querySelector(".mark-line") ?? $("mark").content.firstElementChild.cloneNode(true);
    const cards = [...list.querySelectorAll(".card:not([hidden])")];
    const covered = cards.filter((card) => +card.dataset.seq <= mark).length;
    const live = !list.closest(".column").classList.contains("done");
    line.remove();
    if (!covered || (covered === cards.length && !live && !above)) continue;
    line.querySelector("span").textContent = `mark ≤ #${mark}`;
    insertBySeq(list, line, mark + 0.5);
  }
}

// --- prompts

const key = (prompt) => `${prompt.session_id} ${prompt.seq}`;

function showPrompt(told, { quietly = false } = {}) {
  const session = sessions.get(told.session_id) ?? showSession({ id: told.session_id });
  const known = prompts.get(key(told));
  const prompt = known ? Object.assign(known, told) : { answer: "", card: newCard(), ...told };
  const moved = !known || known.card.parentElement !== column(session, prompt.state);
  prompts.set(key(told), prompt);
  fillCard(prompt);
  if (moved) {
    move(prompt, column(session, prompt.state));
    const how = prompt.state === "done" ? `done, ${prompt.outcome?.replace("_", " ")}` : SAID[prompt.state];
    if (!quietly) announce(`Prompt ${prompt.seq} in ${session.lane.querySelector("h2").textContent}: ${how}`);
  }
  summarize(session);
}

function showEnd(end) {
  const known = end.seq && prompts.get(key(end));
  if (!known) return;
  if (end.text) known.answer = end.text;
  if (end.error) known.answer = end.error;
  showPrompt({ ...known, state: "done", outcome: end.outcome ?? (end.cancelled ? "canceled" : end.error ? "error" : "end_turn") });
}

function showMessage(message) {
  const prompt = prompts.get(key(message));
  if (!prompt || message.role !== "assistant") return;
  prompt.answer = message.parts.filter((p) => p.type === "text").map((p) => p.data.text).join("") || prompt.answer;
  fillCard(prompt);
}

function forget(prompt) {
  prompt.card.remove();
  prompts.delete(key(prompt));
}

const newCard = () => $("card").content.firstElementChild.cloneNode(true);
const column = (session, state) => session.lane.querySelector(`.${state} ol`);

function fillCard({ card, seq, run_id, text, answer, outcome, stopping }) {
  card.querySelector(".seq").textContent = `#${seq}`;
  card.querySelector(".run-id").textContent = run_id ? short(run_id) : "";
  card.querySelector(".run-id").title = run_id ?? "";
  card.querySelector(".outcome").textContent = outcome?.replace("_", " ") ?? (stopping ? "stopping" : "");
  card.querySelector(".text").textContent = text;
  card.querySelector(".answer").textContent = answer;
  card.className = `card ${outcome ?? (stopping ? "stopping" : "")}`.trim();
}

/** Puts an item into its column: by seq, and what is done the latest first. */
function insertBySeq(list, item, seq) {
  item.dataset.seq = seq;
  const newestFirst = list.closest(".column").classList.contains("done");
  const next = [...list.children].find((other) => (newestFirst ? +other.dataset.seq < seq : +other.dataset.seq > seq));
  list.insertBefore(item, next ?? null);
}

/** Puts the card into the column, in order, and lets it glide there. */
function move({ card, seq }, list) {
  const before = card.isConnected ? card.getBoundingClientRect() : null;
  insertBySeq(list, card, seq);
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  if (!before) {
    card.animate([{ opacity: 0 }, { opacity: 1 }], 200);
    return;
  }
  const after = card.getBoundingClientRect();
  const path = `translate(${before.left - after.left}px, ${before.top - after.top}px)`;
  card.animate([{ transform: path }, { transform: "none" }], { duration: 350, easing: "ease-out" });
}

const short = (id) => (id.length > 8 ? `${id.slice(0, 6)}…` : id);

// --- events

function showEvent(id, type, payload) {
  const row = document.createElement("li");
  const how = payload.outcome ?? (payload.cancelled ? "canceled" : payload.error ? "error" : "");
  row.className = `${type} ${type === "run_complete" ? how : ""}`.trim();
  const place = type === "run_complete" ? id?.split("-").pop() : null; // what is in the log, and never lost
  const cells = { id: place ?? "", told: describe(type, payload, how), kind: type.replace("_", " ") };
  for (const [name, text] of Object.entries(cells)) {
    const cell = document.createElement("span");
    cell.className = name;
    cell.textContent = text;
    row.append(cell);
  }
  $("events").prepend(row);
  $("events-empty").hidden = true;
  while ($("events").children.length > EVENTS_SHOWN) $("events").lastElementChild.remove();
}

function describe(type, payload, how) {
  const number = payload.seq ? `#${payload.seq} ` : "";
  switch (type) {
    case "run_complete":
      return `${number}${how.replace("_", " ")}${payload.error ? `: ${payload.error}` : ""}`;
    case "call":
      return payload.call === "cancel" ? `cancel: everything up to #${payload.mark}` : payload.call.replace("_", " ");
    case "prompt":
      return `${number}${payload.outcome ?? (payload.stopping ? "asked to stop" : SAID[payload.state])}`;
    case "message":
      return `${number}${payload.role} ${payload.parts.find((p) => p.type === "finish")?.data.reason ?? "…"}`;
    default:
      return payload.error ?? payload.title ?? "";
  }
}

let said = [];
function announce(text) {
  said = [...said.slice(-2), text];
  $("announcements").textContent = said.join(". ");
}

// --- what people do

async function send(lane) {
  const form = lane.querySelector("form");
  const prompt = form.elements.prompt.value;
  if (!prompt.trim()) return;
  const run_id = form.elements.named.checked ? { run_id: crypto.randomUUID?.() ?? fallbackId() } : {};
  const done = await attempt(async () => {
    await ask("POST", here("agent"), { session_id: lane.dataset.session, prompt, ...run_id });
    return true;
  });
  if (done && form.elements.prompt.value === prompt) form.elements.prompt.value = "";
}

const cancel = (lane) => attempt(() => ask("POST", inSession(lane.dataset.session, "cancel")));
const clear = (lane) => attempt(() => ask("POST", inSession(lane.dataset.session, "prompts/clear")));

function laneOf(element) {
  return element?.closest?.(".lane") ?? document.querySelector(".lane");
}

$("lanes").addEventListener("submit", (event) => {
  event.preventDefault();
  send(laneOf(event.target));
});
$("lanes").addEventListener("click", (event) => {
  if (event.target.matches(".cancel")) cancel(laneOf(event.target));
  if (event.target.matches(".clear")) clear(laneOf(event.target));
});
$("new-session").addEventListener("click", newSession);
$("earlier").addEventListener("click", () => attempt(showEarlier));
$("help-open").addEventListener("click", () => $("help").showModal());
$("workspace").addEventListener("change", pick);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.matches("input[type=text]")) {
    if (event.key === "Escape") laneOf(event.target).querySelector(".cancel").focus();
    return;
  }
  const lane = laneOf(document.activeElement);
  const does = {
    "/": () => lane?.querySelector("input[name=prompt]").focus(),
    c: () => lane && cancel(lane),
    x: () => lane && clear(lane),
    j: () => step(1),
    k: () => step(-1),
    n: newSession,
    "?": () => $("help").showModal(),
  }[event.key];
  if (does && !(event.target.matches("select") && event.key !== "?")) {
    event.preventDefault();
    does();
  }
});

function step(by) {
  const lanes = [...document.querySelectorAll(".lane")];
  const at = lanes.indexOf(document.activeElement?.closest?.(".lane"));
  const next = lanes[Math.max(0, Math.min(lanes.length - 1, at + by))];
  next?.querySelector("input[name=prompt]").focus();
  next?.scrollIntoView({ block: "nearest" });
}

/** Asks for one line of text. Gives null if the user goes back. */
function askFor({ title, label, value = "", secret = false }) {
  $("naming-title").textContent = title;
  $("naming-label").textContent = label;
  $("naming-value").type = secret ? "password" : "text";
  $("naming-value").value = value;
  $("naming").showModal();
  $("naming-value").select();
  return new Promise((resolve) => {
    let answer = null;
    $("naming-form").onsubmit = (event) => {
      event.preventDefault();
      answer = $("naming-value").value.trim() || null;
      $("naming").close();
    };
    $("naming-cancel").onclick = () => $("naming").close();
    $("naming").onclose = () => resolve(answer);
  });
}

async function newSession() {
  const title = await askFor({ title: "New session", label: "Its title", value: `session ${sessions.size + 1}` });
  if (!title) return;
  const made = await attempt(() => ask("POST", here("sessions"), { title }));
  if (made) showSession(made).lane.querySelector("input[name=prompt]").focus();
}

async function askForToken() {
  if ($("naming").open) return;
  connection("needs a token");
  const given = await askFor({ title: "This server wants a token", label: "The text of its token file", secret: true });
  if (!given) return;
  token = given;
  sessionStorage.setItem("token", token);
  await attempt(open);
}

// --- beginning

/** Offers the server's workspaces, and opens the one in the address, or the first; makes one if there is none. */
async function open() {
  const known = (await ask("GET", "workspaces")) ?? [];
  const wanted = new URLSearchParams(location.hash.slice(1)).get("workspace");
  const chosen = known.find(({ path }) => path === wanted) ?? known[0];
  await openPath(wanted ?? chosen?.path ?? (await ask("GET", "version")).directory);
}

/** Opens the workspace of a path, and shows it. One that has been closed meanwhile comes back as it was. */
async function openPath(path) {
  const opened = await ask("POST", "workspaces", { path, client_id: client });
  if (!opened.is_ready) await ask("POST", `workspaces/${encodeURIComponent(opened.id)}/agent/init`, { interactive: true });
  const known = await ask("GET", "workspaces");
  $("workspace").replaceChildren(...known.map((w) => new Option(w.path, w.path)), new Option("another…", ""));
  choose(opened);
}

async function pick() {
  let path = $("workspace").value;
  if (!path) {
    $("workspace").value = workspace.path;
    path = await askFor({ title: "Open a workspace", label: "The path of its directory, on the server's machine", value: workspace.path });
  }
  if (path) await attempt(() => openPath(path));
}

function choose(opened) {
  workspace = opened;
  $("workspace").value = opened.path;
  history.replaceState(null, "", `#workspace=${encodeURIComponent(opened.path)}`);
  sessions.clear();
  prompts.clear();
  $("lanes").replaceChildren();
  $("events").replaceChildren();
  follow();
}

function fallbackId() {
  // crypto.randomUUID exists only on secure origins; a server on another host may be reached over plain HTTP
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = [...bytes].map((b) => b.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

attempt(open);
