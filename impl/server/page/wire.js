// The wire protocol as far as the page needs it: calls, and the events of a stream.
//
// The stream is read with fetch, not EventSource, because a token belongs in a header and not in an address.

export const place = {
  client: crypto.randomUUID ? crypto.randomUUID() : fallbackId(), // this page's client id, shown to other clients
  token: sessionStorage.getItem("token"),
  workspace: null,
};

/** An error response of the server: its message, and the rest of its body. */
export class Refused extends Error {
  constructor(status, message, told) {
    super(message);
    this.status = status;
    this.told = told ?? {};
  }
}

export async function ask(method, path, body, { keepalive = false } = {}) {
  const response = await fetch(`v1/${path}`, {
    method,
    keepalive,
    headers: { ...(body && { "Content-Type": "application/json" }), "Client-Id": place.client, ...authorization() },
    body: body && JSON.stringify(body),
  });
  const text = await response.text();
  let told = null;
  try {
    told = text ? JSON.parse(text) : null;
  } catch {
    // not JSON: the status is enough
  }
  if (!response.ok) throw new Refused(response.status, told?.message ?? `the server responded with status ${response.status}`, told);
  if (told && typeof told === "object") links.set(told, response.headers.get("Link"));
  return told;
}

const links = new WeakMap(); // by response body: its Link header, for paging

/** The query for the page before this one, or null. */
export const pageBefore = (list) => links.get(list)?.match(/<(\?[^>]*)>; *rel="?prev/)?.[1] ?? null;

export const authorization = () => (place.token ? { Authorization: `Bearer ${place.token}` } : {});
export const here = (rest) => `workspaces/${encodeURIComponent(place.workspace.id)}/${rest}`;
export const inSession = (id, rest) => here(`agent/sessions/${encodeURIComponent(id)}/${rest}`);

/** The events of a stream: { id, data }, either of which may be null. Lines end with LF, CRLF or CR; a chunk may end
 * anywhere. */
export async function* eventsOf(body) {
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

export const newId = () => crypto.randomUUID?.() ?? fallbackId();

function fallbackId() {
  // crypto.randomUUID exists only on secure origins; a server on another host may be reached over plain HTTP
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = [...bytes].map((b) => b.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
