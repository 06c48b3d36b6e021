/** Talks to the server: the one place that knows addresses, keys and what statuses mean. */

import { askForKey, currentKey } from "./key.js";
import { eventData } from "./sse.js";

const UNREACHABLE = "The server does not answer. Is slipstream serve still running?";

/** What the server, or the way to it, has against a request; the message is for people. */
export class ApiError extends Error {}

/** What the page shows of the server: `model`, `defaults` (of parameters) and `contextLength`. */
export async function serverFacts() {
  const [models, properties] = await Promise.all([json("v1/models"), json("props")]);
  return {
    model: models.data[0]?.id ?? properties.model,
    defaults: properties.default_generation_settings ?? {},
    contextLength: properties.context_length,
  };
}

/** The chunks of a streamed chat completion. Closing the iterator or aborting `signal` stops the generation. */
export async function* chatChunks(body, signal) {
  const response = await send("v1/chat/completions", { body, signal });
  try {
    for await (const data of eventData(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.error.message);
      yield chunk;
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === "AbortError") throw error;
    throw new ApiError("The connection broke off before the answer was complete.");
  }
  throw new ApiError("The connection ended before the answer was complete.");
}

/** Safe HTML of Markdown. Never asks for a key: what is shown meanwhile is the text itself. */
export async function markdownToHtml(text) {
  const response = await send("page/markdown", { body: { text }, mayAsk: false });
  return (await response.json()).html;
}

async function json(path) {
  return (await send(path)).json();
}

async function send(path, { body, signal, mayAsk = true } = {}) {
  for (;;) {
    const key = currentKey();
    const response = await reach(path, body, signal, key);
    if (response.ok) return response;
    if (response.status !== 401 || !mayAsk) throw new ApiError(await sentence(response));
    // Another request may have asked while this one was on its way.
    if (key === currentKey() && (await askForKey(key !== null)) === null) {
      throw new ApiError("The server wants an API key.");
    }
    signal?.throwIfAborted();
  }
}

async function reach(path, body, signal, key) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  try {
    return await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(UNREACHABLE);
  }
}

async function sentence(response) {
  let said;
  try {
    said = (await response.json()).error.message;
  } catch {
    said = `The server answered with status ${response.status}.`;
  }
  const wait = Number(response.headers.get("Retry-After"));
  return wait > 0 ? `${said} Try again in ${wait === 1 ? "a second" : `${wait} seconds`}.` : said;
}
