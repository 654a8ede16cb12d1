// What people do: they send, cancel, stop, hold and resume, and they drop, edit and move up what waits.
//
// Others may do the same at the same time. Each act is one call, and whoever comes too late is told what the server says.

import { $, announce, list, promptOf, say, sessionOf, waits, watchers } from "./board.js";
import { Refused, ask, here, inSession, newId } from "./wire.js";

/** Does what the user asked for, and shows what goes wrong. What it returns as a text is what the user must know. */
export async function attempt(work) {
  try {
    const result = await work();
    complain(typeof result === "string" ? result : null);
    return result;
  } catch (error) {
    complain(error instanceof Refused ? error.message : `The server cannot be reached (${error.message}).`);
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

/** Stops the prompt that the user sees running, and no other that has come after it. */
async function stop(lane, hold) {
  const seen = list(sessionOf(lane)).find((prompt) => prompt.state === "active");
  const { stopped, held } = await call(lane, "stop", { hold, seq: seen?.seq });
  const then = hold && !held ? ", and the session is not held" : "";
  if (seen && !stopped) return `Prompt #${seen.seq} is not running any more: nothing is stopped${then}`;
  if (!stopped && !hold) return "Nothing runs: nothing is stopped";
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
  up: (prompt) => ask("POST", at(prompt, "/next")).then(() => null),
  drop: async (prompt) => {
    const { effect, outcome, into } = await ask("DELETE", at(prompt));
    if (effect === "asked") return `Prompt #${prompt.seq} runs already, and was asked to stop`;
    if (effect === "none" && outcome !== "canceled") {
      return `Prompt #${prompt.seq} had ended before: ${say(outcome)}${into ? ` into #${into}` : ""}`;
    }
  },
  halt: async (prompt) => {
    const { stopped } = await ask("POST", inSession(prompt.session_id, "stop"), { seq: prompt.seq });
    if (!stopped) return `Prompt #${prompt.seq} is not running any more: nothing is stopped`;
  },
};

/** Acts on the prompt of a card, if it is one that this can be done to. */
export function act(card, name) {
  const button = card.querySelector(`[data-act="${name}"]`);
  const prompt = promptOf(card);
  if (prompt && !button.hidden) attempt(() => CARD_ACTS[name](prompt));
}

// --- editing

let release = null; // ends the hold for which this page edits

/** Edits a text in a session that is held meanwhile, so that the prompt does not start. */
async function edit(prompt) {
  if ($("editing").open) return;
  const session = await ask("GET", inSession(prompt.session_id, "").replace(/\/$/, ""));
  if (!session.held) {
    await ask("POST", inSession(prompt.session_id, "hold"));
    release = () => ask("POST", inSession(prompt.session_id, "resume"), null, { keepalive: true });
  }
  try {
    const waiting = await read(prompt);
    if (!waits(waiting)) return `Prompt #${prompt.seq} does not wait any more: it is ${say(waiting.outcome || waiting.state)}`;
    const told = await editText(waiting);
    if (told) announce(told);
  } finally {
    const end = release;
    release = null;
    await end?.();
  }
}

/** The prompt with its whole text: events have only the beginning. */
async function read(prompt) {
  const listed = await ask("GET", inSession(prompt.session_id, "prompts"));
  return listed.find(({ seq }) => seq === prompt.seq) ?? { ...prompt, state: "done", outcome: "done" };
}

/** Opens the editor, and closes it when the text is taken or the user goes back. */
function editText(prompt) {
  const { seq } = prompt;
  let { version = 0 } = prompt;
  $("editing-title").textContent = `Edit prompt #${seq}`;
  $("editing-text").value = prompt.text;
  warn(null);
  const watcher = (other) => {
    if (other.seq !== seq || other.session_id !== prompt.session_id) return;
    if (!waits(other)) warn(`Prompt #${seq} does not wait any more: it is ${say(other.outcome || other.state)}.`);
    else if ((other.version ?? 0) > version) warn(`Somebody else has changed the text: ${other.text}`);
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
        answer = `Prompt ${seq} has the new text`;
        $("editing").close();
      } catch (error) {
        if (!(error instanceof Refused)) return warn(`The server cannot be reached (${error.message}). Save again.`);
        if (error.told.code !== "other_version") return warn(`${error.message}. Your text is kept here until you go back.`);
        const now = await read(prompt);
        version = error.told.version; // whoever saves once more has seen the other text
        warn(`Somebody else has changed the text to: ${now.text} — Save again to put yours in its place.`);
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
addEventListener("pagehide", () => release?.()); // whoever closes the page edits no more
