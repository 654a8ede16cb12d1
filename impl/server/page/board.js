// What is shown: sessions as lanes, prompts as cards, and the list of events. A card is where the server says it is.

import { place } from "./wire.js";

const FINISHED_SHOWN = 6;
const FINISHED_KEPT = 50; // in a lane: as many as the server lists
const EVENTS_SHOWN = 200;

export const $ = (id) => document.getElementById(id);
const columns = $("lane").content.querySelectorAll(".column"); // one for each state, filled in by the server
const SAID = Object.fromEntries([...columns].map((c) => [c.dataset.state, c.querySelector("h3").textContent.toLowerCase()]));
const WAITING = ["accepted", "queued"];

export const sessions = new Map(); // by id: { id, title, held, mark, lane }
export const prompts = new Map(); // by session id and seq: { seq, session_id, run_id, text, state, outcome, answer, card }
export const watchers = new Set(); // functions that are told of each prompt that has changed

export const key = (prompt) => `${prompt.session_id} ${prompt.seq}`;
export const waits = (prompt) => WAITING.includes(prompt.state);
export const promptOf = (card) => [...prompts.values()].find((prompt) => prompt.card === card);
export const sessionOf = (lane) => sessions.get(lane.dataset.session);
export const list = (session) => [...prompts.values()].filter((prompt) => prompt.session_id === session.id);
export const say = (word) => (word ?? "").replaceAll("_", " ");

export function forgetAll() {
  sessions.clear();
  prompts.clear();
  $("lanes").replaceChildren();
  $("events").replaceChildren();
}

// --- sessions

export function showSession(session, { first = false } = {}) {
  const known = sessions.get(session.id);
  if (known) {
    known.lane.querySelector("h2").textContent = session.title || session.id;
    if ("held" in session || "is_busy" in session) known.held = session.held ?? false;
    if (session.mark) showMark(session.id, session.mark);
    summarize(known);
    return known;
  }
  const lane = $("lane").content.firstElementChild.cloneNode(true);
  const heading = lane.querySelector("h2");
  heading.id = `lane-${sessions.size + 1}`;
  heading.textContent = session.title || session.id;
  lane.setAttribute("aria-labelledby", heading.id);
  lane.dataset.session = session.id;
  const name = heading.textContent;
  for (const button of lane.querySelectorAll("[data-label]")) {
    button.setAttribute("aria-label", button.dataset.label.replace("{}", name));
  }
  for (const state of Object.keys(SAID)) {
    lane.querySelector(`.${state} ol`).setAttribute("aria-label", `${name}, ${SAID[state]}`);
  }
  const entry = { mark: 0, held: false, ...session, lane, forgotten: 0 };
  sessions.set(session.id, entry);
  if (first) $("lanes").prepend(lane);
  else $("lanes").append(lane);
  summarize(entry);
  return entry;
}

function summarize(session) {
  const { lane, held } = session;
  const mine = list(session);
  const live = mine.filter((p) => p.state !== "done");
  const queue = live.filter((p) => p.state === "queued").sort(byPlace);
  const busy = live.length > queue.length ? "busy" : queue.length ? "" : "idle";
  const words = [busy, queue.length ? `${queue.length} queued` : ""].filter(Boolean).join(", ");
  lane.querySelector(".lane-state").textContent = words;
  lane.classList.toggle("held", held);
  lane.querySelector(".lane-held").hidden = !held;
  lane.querySelector(".lane-held").textContent = `held${session.holder ? ` by ${session.holder}` : ""}: nothing starts before Resume`;
  const [hold, resume] = [".hold", ".resume"].map((name) => lane.querySelector(name));
  const focused = [hold, resume].includes(document.activeElement);
  hold.hidden = held;
  resume.hidden = !held;
  if (focused) (held ? resume : hold).focus();
  queue.forEach(({ card }, i) => {
    card.querySelector(".place").textContent = i ? `${i + 1} of ${queue.length}` : "next";
    card.querySelector("[data-act=up]").hidden = !i; // it is the next already
  });
  const finished = mine.filter((p) => p.state === "done").sort((a, b) => b.seq - a.seq);
  finished.forEach((p, i) => (p.card.hidden = i >= FINISHED_SHOWN));
  const hidden = session.forgotten + finished.length - FINISHED_SHOWN;
  const note = lane.querySelector(".done .earlier");
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
  for (const column of lane.querySelectorAll(".columns ol")) {
    const line = column.querySelector(".mark-line") ?? $("mark").content.firstElementChild.cloneNode(true);
    const cards = [...column.querySelectorAll(".card:not([hidden])")];
    const covered = cards.filter((card) => +card.dataset.seq <= mark).length;
    const live = !column.closest(".column").classList.contains("done");
    line.remove();
    if (!covered || (covered === cards.length && !live && !above)) continue;
    line.querySelector("span").textContent = `mark ≤ #${mark}`;
    insert(column, line, { seq: mark + 0.5 });
  }
}

// --- prompts

export function showPrompt(told, { quietly = false } = {}) {
  const session = sessions.get(told.session_id) ?? showSession({ id: told.session_id });
  const known = prompts.get(key(told));
  const before = known && { front: known.front ?? 0, version: known.version ?? 0 };
  const prompt = known ? Object.assign(known, told) : { answer: "", card: newCard(), ...told };
  const moved = !known || known.card.parentElement !== column(session, prompt.state);
  const ahead = known && (prompt.front ?? 0) !== before.front;
  const edited = known && (prompt.version ?? 0) !== before.version;
  prompts.set(key(told), prompt);
  fillCard(prompt);
  if (moved || ahead) move(prompt, column(session, prompt.state));
  const how = moved ? (prompt.state === "done" ? `done, ${say(prompt.outcome)}` : SAID[prompt.state])
    : edited ? "edited" : ahead ? "moved to the front" : null;
  if (how && !quietly) announce(`Prompt ${prompt.seq} in ${session.lane.querySelector("h2").textContent}: ${how}`);
  summarize(session);
  for (const watcher of watchers) watcher(prompt);
}

export function showEnd(end) {
  const known = end.seq && prompts.get(key(end));
  if (!known) return;
  if (end.text) known.answer = end.text;
  if (end.error) known.answer = end.error;
  showPrompt({ ...known, state: "done", outcome: end.outcome ?? (end.cancelled ? "canceled" : end.error ? "error" : "end_turn") });
}

export function showMessage(message) {
  const prompt = prompts.get(key(message));
  if (!prompt || message.role !== "assistant") return;
  prompt.answer = message.parts.filter((p) => p.type === "text").map((p) => p.data.text).join("") || prompt.answer;
  fillCard(prompt);
}

export function forget(prompt) {
  prompt.card.remove();
  prompts.delete(key(prompt));
}

const newCard = () => $("card").content.firstElementChild.cloneNode(true);
const column = (session, state) => session.lane.querySelector(`.${state} ol`);

function fillCard(prompt) {
  const { card, seq, run_id, text, answer, outcome, stopping, version } = prompt;
  const put = (name, words) => (card.querySelector(`.${name}`).textContent = words);
  put("seq", `#${seq}`);
  put("run-id", run_id ? short(run_id) : "");
  card.querySelector(".run-id").title = run_id ?? "";
  put("outcome", outcome ? say(outcome) : stopping ? "stopping" : "");
  put("edited", version && waits(prompt) ? "edited" : "");
  put("node", prompt.state === "active" && prompt.node ? `at ${prompt.node}` : "");
  card.querySelector(".node").hidden = !card.querySelector(".node").textContent;
  put("text", text);
  put("answer", answer);
  if (prompt.state !== "queued") put("place", "");
  card.setAttribute("aria-label", `Prompt ${seq}`);
  card.className = `card ${outcome ?? (stopping ? "stopping" : "")}`.trim();
  for (const button of card.querySelectorAll("[data-act]")) {
    button.hidden = button.dataset.act === "halt" ? prompt.state !== "active" || stopping : !waits(prompt);
    button.setAttribute("aria-label", `${button.textContent} prompt ${seq}`);
  }
  card.querySelector(".acts").hidden = !card.querySelector("[data-act]:not([hidden])");
}

const byPlace = (a, b) => (b.front ?? 0) - (a.front ?? 0) || a.seq - b.seq;

/** Puts an item into its column: what is queued by its place, what is done the latest first, the others by seq. */
function insert(column, item, { seq, front = 0 }) {
  item.dataset.seq = seq;
  item.dataset.front = front;
  const kind = column.closest(".column").dataset.state;
  const mine = { seq, front };
  const order = kind === "done" ? (a, b) => b.seq - a.seq : kind === "queued" ? byPlace : (a, b) => a.seq - b.seq;
  const placeOf = (other) => ({ seq: +other.dataset.seq, front: +other.dataset.front });
  column.insertBefore(item, [...column.children].find((other) => other !== item && order(placeOf(other), mine) > 0) ?? null);
}

/** Puts the card into the column, in order, and lets it glide there. Whoever was on it stays on it. */
function move({ card, seq, front }, column) {
  const before = card.isConnected ? card.getBoundingClientRect() : null;
  const focused = card.contains(document.activeElement) ? document.activeElement : null;
  insert(column, card, { seq, front });
  if (focused) (focused.checkVisibility() ? focused : card).focus({ preventScroll: true });
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

/** Shows what somebody has called: the mark as it is then, and whose hold it is. */
export function showCall(call) {
  showMark(call.session_id, call.mark);
  const session = sessions.get(call.session_id);
  if (!session) return;
  if (call.held) session.holder = who(call);
  else if (call.call === "resume") session.holder = null;
  summarize(session);
}

/** Says that a session goes on at another node, since its own is gone. */
export function showTakenOver({ session_id, node, gone }) {
  const title = sessions.get(session_id)?.lane.querySelector("h2").textContent ?? "a session";
  announce(`${node} took ${title} over from ${gone}`);
}

const who = ({ client_id: id }) => (id === place.client ? "you" : id ? `client ${id.slice(0, 4)}` : "somebody");

export function showEvent(id, type, payload) {
  const row = document.createElement("li");
  const how = payload.outcome ?? (payload.cancelled ? "canceled" : payload.error ? "error" : "");
  row.className = `${type} ${type === "run_complete" ? how : ""}`.trim();
  const logged = type === "run_complete" ? id?.split("-").pop() : null; // what is in the log, and never lost
  const cells = { id: logged ?? "", told: describe(type, payload, how), kind: type === "call" ? who(payload) : say(type) };
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
      return `${number}${say(how)}${payload.error ? `: ${payload.error}` : ""}`;
    case "call":
      return describeCall(payload);
    case "prompt":
      return `${number}${say(payload.outcome) || (payload.stopping ? "asked to stop" : SAID[payload.state])}`;
    case "taken_over":
      return `${payload.node} took over from ${payload.gone}`;
    case "message":
      return `${number}${payload.role} ${payload.parts.find((p) => p.type === "finish")?.data.reason ?? "…"}`;
    default:
      return payload.error ?? payload.title ?? "";
  }
}

function describeCall({ call, mark, seq, held }) {
  switch (call) {
    case "cancel":
      return `cancel: everything up to #${mark}`;
    case "revoke":
      return `drop #${seq}`;
    case "replace":
      return `edit #${seq}`;
    case "next":
      return `#${seq} to the front`;
    case "stop":
      return `stop${seq ? ` #${seq}` : ""}${held ? ", and hold" : ""}`;
    default:
      return `${say(call)}${seq ? ` #${seq}` : ""}`;
  }
}

let said = [];
export function announce(text) {
  said = [...said.slice(-2), text];
  $("announcements").textContent = said.join(". ");
}
