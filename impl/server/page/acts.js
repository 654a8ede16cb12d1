// User actions: send, cancel, stop, hold and resume; drop, edit and move up waiting prompts.
//
// Other clients may act concurrently. Each action is one call, and the loser of a race is shown the server's message.

import { $, announce, asksOf, list, promptOf, say, sayEnd, sessionOf, showAsk, waits, watchers } from "./board.js";
import { Refused, ask, here, inSession, newId } from "./wire.js";

/** Runs an action and shows its error. If the action returns a string, shows it to the user. */
export async function attempt(work) {
  try {
    const result = await work();
    complain(typeof result === "string" ? result : null);
    return result;
  } catch (error) {
    complain(error instanceof Refused ? error.message : `The server is unreachable (${error.message}). Try again.`);
    if (error.status === 401) document.dispatchEvent(new Event("unauthorized"));
    return null;
  }
}

export function complain(message) {
  $("problem").hidden = !message;
  $("problem").textContent = message ? message[0].toUpperCase() + message.slice(1) : "";
}

// --- in a lane

const MODES = { send: undefined, "send-now": "interrupt", "send-if-idle": "reject" };

export async function send(lane, how = "send") {
  const form = lane.querySelector("form");
  const prompt = form.elements.prompt.value;
  if (!prompt.trim()) return form.elements.prompt.focus();
  const run_id = form.elements.named.checked ? newId() : undefined;
  const done = await attempt(async () => {
    await ask("POST", here("agent"), { session_id: lane.dataset.session, prompt, run_id, if_busy: MODES[how] });
    return true;
  });
  if (done && form.elements.prompt.value === prompt) form.elements.prompt.value = "";
}

const call = (lane, rest, body) => ask("POST", inSession(lane.dataset.session, rest), body);

/** Stops the prompt that the user sees running, but not one that has replaced it meanwhile. */
async function stop(lane, hold) {
  const seen = list(sessionOf(lane)).find((prompt) => prompt.state === "active");
  const { stopped, held } = await call(lane, "stop", { hold, seq: seen?.seq });
  const then = hold && !held ? ", and the session is not held" : "";
  if (seen && !stopped) return `Prompt #${seen.seq} is no longer running: nothing was stopped${then}`;
  if (!stopped && !hold) return "Nothing is running: nothing was stopped";
}

export const LANE_ACTS = {
  cancel: (lane) => call(lane, "cancel"),
  clear: (lane) => call(lane, "prompts/clear"),
  stop: (lane) => stop(lane, false),
  "stop-hold": (lane) => stop(lane, true),
  hold: (lane) => call(lane, "hold"),
  resume: (lane) => call(lane, "resume"),
};

// --- on a card

const at = (prompt, rest = "") => inSession(prompt.session_id, `prompts/${prompt.seq}${rest}`);

export const CARD_ACTS = {
  edit,
  allow: (prompt) => answer(prompt, "allow"),
  deny: (prompt) => answer(prompt, "deny"),
  up: (prompt) => ask("POST", at(prompt, "/next")).then(() => null),
  drop: async (prompt) => {
    const { effect, outcome, into } = await ask("DELETE", at(prompt));
    if (effect === "asked") return `Prompt #${prompt.seq} is already running and was asked to stop`;
    if (effect === "none" && outcome !== "canceled") {
      return `Prompt #${prompt.seq} had already finished: ${say(outcome)}${into ? ` into #${into}` : ""}`;
    }
  },
  halt: async (prompt) => {
    const { stopped } = await ask("POST", inSession(prompt.session_id, "stop"), { seq: prompt.seq });
    if (!stopped) return `Prompt #${prompt.seq} is no longer running: nothing was stopped`;
  },
};

/** Answers the question that the card shows. The loser of a race is told who has answered, or why it was withdrawn. */
async function answer(prompt, given) {
  const question = asksOf(prompt)[0];
  const value = given === "allow" && question.kind === "input" ? valueOf(prompt, question) : undefined;
  try {
    await ask("POST", inSession(prompt.session_id, `asks/${question.ask}`), { answer: given, value });
  } catch (error) {
    const ended = error.told?.ask;
    if (!ended) throw error;
    showAsk(ended);
    return `Prompt #${prompt.seq}: the question is closed: ${sayEnd(ended)}`;
  }
}

/** The value that the user has typed: a text, unless the question asks for something else. */
function valueOf({ card }, { json_schema: schema }) {
  const typed = card.querySelector(".value").value;
  if (!schema || schema.type === "string") return typed;
  try {
    return JSON.parse(typed);
  } catch {
    return typed; // the server says what it expects
  }
}

/** Runs an action on the prompt of a card, if the card offers it. */
export function act(card, name) {
  const button = card.querySelector(`[data-act="${name}"]`);
  const prompt = promptOf(card);
  if (prompt && button.checkVisibility()) attempt(() => CARD_ACTS[name](prompt));
}

// --- editing

let release = null; // releases the hold that this page took for editing

/** Edits a text while holding the session, so that the prompt does not start. */
async function edit(prompt) {
  if ($("editing").open) return;
  const session = await ask("GET", inSession(prompt.session_id, "").replace(/\/$/, ""));
  if (!session.held) {
    await ask("POST", inSession(prompt.session_id, "hold"));
    release = () => ask("POST", inSession(prompt.session_id, "resume"), null, { keepalive: true });
  }
  try {
    const waiting = await read(prompt);
    if (!waits(waiting)) return `Prompt #${prompt.seq} is no longer waiting: it is ${say(waiting.outcome || waiting.state)}`;
    const told = await editText(waiting);
    if (told) announce(told);
  } finally {
    const end = release;
    release = null;
    await end?.();
  }
}

/** The prompt with its full text: events carry only the beginning. */
async function read(prompt) {
  const listed = await ask("GET", inSession(prompt.session_id, "prompts"));
  return listed.find(({ seq }) => seq === prompt.seq) ?? { ...prompt, state: "done", outcome: "done" };
}

/** Opens the editor, and closes it when the server accepts the text or the user cancels. */
function editText(prompt) {
  const { seq } = prompt;
  let { version = 0 } = prompt;
  $("editing-title").textContent = `Edit prompt #${seq}`;
  $("editing-text").value = prompt.text;
  warn(null);
  const watcher = (other) => {
    if (other.seq !== seq || other.session_id !== prompt.session_id) return;
    if (!waits(other)) warn(`Prompt #${seq} is no longer waiting: it is ${say(other.outcome || other.state)}.`);
    else if ((other.version ?? 0) > version) warn(`Another client has changed the text: ${other.text}`);
  };
  watchers.add(watcher);
  $("editing").showModal();
  $("editing-text").focus();
  return new Promise((resolve) => {
    let answer = null;
    $("editing-form").onsubmit = async (event) => {
      event.preventDefault();
      try {
        await ask("PUT", at(prompt, "/text"), { prompt: $("editing-text").value, if_version: version });
        answer = `Prompt ${seq}: text saved`;
        $("editing").close();
      } catch (error) {
        if (!(error instanceof Refused)) return warn(`The server is unreachable (${error.message}). Save again.`);
        if (error.told.code !== "other_version") return warn(`${error.message}. Your text stays here until you close the editor.`);
        const now = await read(prompt);
        version = error.told.version; // the user has now seen the other text and may overwrite it
        warn(`Another client has changed the text to: ${now.text} — Save again to overwrite it.`);
      }
    };
    $("editing-back").onclick = () => $("editing").close();
    $("editing").onclose = () => {
      watchers.delete(watcher);
      resolve(answer);
    };
  });
}

function warn(message) {
  $("editing-news").hidden = !message;
  $("editing-news").textContent = message ?? "";
}

$("editing-text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("editing-form").requestSubmit();
});
addEventListener("pagehide", () => release?.()); // closing the page ends the edit
