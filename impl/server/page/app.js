// The live page: shows the server's state. It implements no protocol rules: the server determines a card's state.
//
// On every connection the page opens the stream first and then requests a snapshot. Events that arrive meanwhile are
// buffered and applied after the snapshot. So no event is missed, and applying one twice is idempotent.

import { LANE_ACTS, act, attempt, send } from "./acts.js";
import * as board from "./board.js";
import { $, key, prompts, sessions } from "./board.js";
import { Refused, ask, authorization, eventsOf, here, inSession, pageBefore, place } from "./wire.js";

const SESSIONS_SHOWN = 50; // per page of sessions
const RETRY = [500, 1000, 2000, 5000]; // backoff in milliseconds

let earlier = null; // the query for the previous page of sessions
let stream = null; // the AbortController of the current stream; older ones stop

// --- the stream

async function follow() {
  const mine = new AbortController();
  stream?.abort();
  stream = mine;
  let seen = null; // the id of the last event
  for (let failures = 0; stream === mine; failures += 1) {
    const attempted = new AbortController();
    mine.signal.addEventListener("abort", () => attempted.abort());
    try {
      const headers = { Accept: "text/event-stream", ...authorization(), ...(seen && { "Last-Event-ID": seen }) };
      const response = await fetch(`v1/${here("events")}?client_id=${place.client}`, { headers, signal: attempted.signal });
      if (!response.ok) throw new Refused(response.status, `the server refused the event stream with status ${response.status}`);
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
        seen = id ?? seen;
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

/** Requests a snapshot of all sessions and prompts. */
async function look() {
  const known = (await ask("GET", here(`sessions?limit=${SESSIONS_SHOWN}`))) ?? [];
  if (!sessions.size) offerEarlier(pageBefore(known));
  for (const session of known) board.showSession(session);
  const listed = await Promise.all([...sessions.keys()].map((id) => ask("GET", inSession(id, "prompts"))));
  const seen = new Set(listed.flat().map(key));
  for (const [k, prompt] of prompts) {
    if (!seen.has(k) && prompt.state !== "done") board.forget(prompt);
  }
  listed.flat().forEach((prompt) => board.showPrompt(prompt, { quietly: true }));
  await showAsks(listed.flat());
  if (!known.length) await ask("POST", here("sessions"), { title: "first session" }).then(board.showSession);
}

/** Shows the open questions of these prompts, which name them. A prompt whose question has ended meanwhile shows none. */
async function showAsks(listed) {
  for (const prompt of listed) board.forgetAsks(prompt);
  const asking = new Set(listed.filter((prompt) => prompt.asks?.length).map((prompt) => prompt.session_id));
  const asks = await Promise.all([...asking].map((id) => ask("GET", inSession(id, "asks"))));
  asks.flat().forEach(board.showAsk);
}

function happen({ id, data }) {
  const { type, payload: { type: verb, payload } = {} } = data;
  if (!payload) return;
  if (type === "prompt") board.showPrompt(payload);
  else if (type === "run_complete") board.showEnd(payload);
  else if (type === "message") board.showMessage(payload);
  else if (type === "ask") board.showAsk(payload);
  else if (type === "session" && verb !== "deleted") board.showSession(payload);
  else if (type === "call") board.showCall(payload);
  else if (type === "taken_over") board.showTakenOver(payload);
  const toldElsewhere = type === "message" || (type === "session" && verb === "updated") // by the call that held it
    || (type === "prompt" && payload.state === "done" && payload.outcome !== "folded"); // by its run_complete
  if (!toldElsewhere || $("every-update").checked) board.showEvent(id, type, payload);
}

function connection(state) {
  $("connection").textContent = state;
  $("connection").classList.toggle("live", state === "live");
}

// --- earlier sessions

function offerEarlier(query) {
  earlier = query;
  $("earlier").hidden = !query;
}

/** Shows the previous page of sessions. */
async function showEarlier() {
  const known = await ask("GET", here(`sessions${earlier}`));
  offerEarlier(pageBefore(known));
  for (const session of [...known].reverse()) board.showSession(session, { first: true });
  const listed = await Promise.all(known.map((s) => ask("GET", inSession(s.id, "prompts"))));
  listed.flat().forEach((prompt) => board.showPrompt(prompt, { quietly: true }));
  await showAsks(listed.flat());
}

// --- mouse and keys

const laneOf = (element) => element?.closest?.(".lane") ?? document.querySelector(".lane");

$("lanes").addEventListener("submit", (event) => {
  event.preventDefault();
  send(laneOf(event.target), event.submitter?.value || "send");
});
$("lanes").addEventListener("click", ({ target }) => {
  const card = target.closest(".card");
  if (target.dataset.act) act(card, target.dataset.act);
  else if (target.dataset.do) attempt(() => LANE_ACTS[target.dataset.do](laneOf(target)));
});
$("new-session").addEventListener("click", newSession);
$("earlier").addEventListener("click", () => attempt(showEarlier));
$("help-open").addEventListener("click", () => $("help").showModal());
$("workspace").addEventListener("change", pick);
document.addEventListener("unauthorized", askForToken);

const IN_LANE = { c: "cancel", x: "clear", s: "stop", S: "stop-hold", h: "hold" };
const ON_CARD = { e: "edit", u: "up", d: "drop", Delete: "drop", s: "halt", y: "allow", n: "deny" };

document.addEventListener("keydown", (event) => {
  if (event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const here = document.activeElement;
  const lane = laneOf(here);
  const does = event.target.matches("input[type=text]") ? whileWriting(event, lane) : event.ctrlKey ? null : elsewhere(event, lane);
  if (does && !(event.target.matches("select") && event.key !== "?")) {
    event.preventDefault();
    does();
  }
});

function whileWriting(event, lane) {
  if (event.key === "Escape") return () => lane.querySelector(".cancel").focus();
  if (event.key === "Enter" && event.ctrlKey) return () => send(lane, "send-now");
  if (event.key === "Enter" && event.shiftKey) return () => send(lane, "send-if-idle");
  if (event.key === "ArrowDown" && !event.ctrlKey) return () => walk(lane, 1);
}

function elsewhere({ key }, lane) {
  const card = document.activeElement?.closest?.(".card");
  if (card && ON_CARD[key] && card.querySelector(`[data-act="${ON_CARD[key]}"]`).checkVisibility()) return () => act(card, ON_CARD[key]);
  if (lane && IN_LANE[key]) {
    const held = key === "h" && lane.classList.contains("held");
    return () => attempt(() => LANE_ACTS[held ? "resume" : IN_LANE[key]](lane));
  }
  return {
    "/": () => lane?.querySelector("input[name=prompt]").focus(),
    j: () => step(1),
    k: () => step(-1),
    ArrowDown: () => walk(lane, 1),
    ArrowUp: () => walk(lane, -1),
    n: newSession,
    "?": () => $("help").showModal(),
  }[key];
}

function step(by) {
  const lanes = [...document.querySelectorAll(".lane")];
  const at = lanes.indexOf(document.activeElement?.closest?.(".lane"));
  const next = lanes[Math.max(0, Math.min(lanes.length - 1, at + by))];
  next?.querySelector("input[name=prompt]").focus();
  next?.scrollIntoView({ block: "nearest" });
}

/** Moves the focus from card to card of a lane; above the first card is the prompt field. */
function walk(lane, by) {
  const cards = [...(lane?.querySelectorAll(".card:not([hidden])") ?? [])];
  const at = cards.indexOf(document.activeElement?.closest?.(".card")) + by;
  if (at < 0) lane?.querySelector("input[name=prompt]").focus();
  else cards[Math.min(at, cards.length - 1)]?.focus();
}

// --- dialogs

/** Asks for one line of text. Returns null if the user cancels. */
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
  const title = await askFor({ title: "New session", label: "Title", value: `session ${sessions.size + 1}` });
  if (!title) return;
  const made = await attempt(() => ask("POST", here("sessions"), { title }));
  if (made) board.showSession(made).lane.querySelector("input[name=prompt]").focus();
}

async function askForToken() {
  if ($("naming").open) return;
  connection("needs a token");
  const given = await askFor({ title: "This server requires a token", label: "Content of the server's token file", secret: true });
  if (!given) return;
  place.token = given;
  sessionStorage.setItem("token", given);
  await attempt(open);
}

// --- start

/** Lists the server's workspaces and opens the one in the address, or the first; creates one if there is none. */
async function open() {
  const known = (await ask("GET", "workspaces")) ?? [];
  const wanted = new URLSearchParams(location.hash.slice(1)).get("workspace");
  const chosen = known.find(({ path }) => path === wanted) ?? known[0];
  await openPath(wanted ?? chosen?.path ?? (await ask("GET", "version")).directory);
}

/** Opens the workspace of a path and shows it. Reopening a closed workspace restores its state. */
async function openPath(path) {
  const opened = await ask("POST", "workspaces", { path, client_id: place.client });
  if (!opened.is_ready) await ask("POST", `workspaces/${encodeURIComponent(opened.id)}/agent/init`, { interactive: true });
  const known = await ask("GET", "workspaces");
  $("workspace").replaceChildren(...known.map((w) => new Option(w.path, w.path)), new Option("another…", ""));
  choose(opened);
}

async function pick() {
  let path = $("workspace").value;
  if (!path) {
    $("workspace").value = place.workspace.path;
    path = await askFor({
      title: "Open a workspace", label: "Path of its directory on the server", value: place.workspace.path });
  }
  if (path) await attempt(() => openPath(path));
}

function choose(opened) {
  place.workspace = opened;
  $("workspace").value = opened.path;
  history.replaceState(null, "", `#workspace=${encodeURIComponent(opened.path)}`);
  board.forgetAll();
  follow();
}

attempt(open);
