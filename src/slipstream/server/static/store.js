/**
 * Conversations and parameters in the browser's own storage. Where that is full or blocked everything goes on in
 * memory, and `onTrouble` is told once why ("full" or "blocked").
 *
 * A conversation is {id, title, turns, updated}; a turn is {role: "user", content} or {role: "assistant", content,
 * tokens, finish, seed, figures, error}. Each has an entry of its own, so that a long list costs nothing to keep.
 */

const INDEX = "slipstream.conversations";
const CONVERSATION = "slipstream.conversation.";
const PARAMETERS = "slipstream.parameters";
const CURRENT = "slipstream.current";

export class Store {
  #unsaved = new Map();
  #storage;
  #onTrouble;
  #told = false;
  #removed = new Set();

  constructor(onTrouble) {
    this.#onTrouble = onTrouble;
    try {
      this.#storage = localStorage;
    } catch {
      this.#storage = null; // cookies and storage are blocked for this page
    }
  }

  /** [{id, title, updated}], the newest first. */
  list() {
    const entries = this.#read(INDEX, Array.isArray, []).filter((entry) => this.#text(CONVERSATION + entry?.id) !== null);
    return entries.sort((one, other) => other.updated - one.updated);
  }

  /** The conversation with this id, or null if there is none, or none that can be read. */
  load(id) {
    const stored = this.#read(CONVERSATION + id, (value) => value?.turns?.every(isTurn), null);
    return stored && { ...stored, turns: stored.turns.map(unpacked) };
  }

  /** The conversation with this id if `key`, which another tab has written to, is its entry; otherwise null. */
  changedElsewhere(key, id) {
    return key === CONVERSATION + id ? this.load(id) : null;
  }

  save(conversation) {
    const { id, title, updated } = conversation;
    if (this.#removed.has(id)) return; // an answer that was on its way when its conversation was deleted
    this.#write(CONVERSATION + id, { ...conversation, turns: conversation.turns.map(packed) });
    this.#write(INDEX, [...this.list().filter((entry) => entry.id !== id), { id, title, updated }]);
  }

  rename(id, title) {
    const conversation = this.load(id);
    if (conversation) this.save({ ...conversation, title });
  }

  remove(id) {
    this.#removed.add(id);
    this.#write(INDEX, this.list().filter((entry) => entry.id !== id));
    this.#unsaved.delete(CONVERSATION + id);
    this.#storage?.removeItem(CONVERSATION + id);
    this.#told = false; // there may be room again; if not, that is worth saying again
  }

  get parameters() {
    return this.#read(PARAMETERS, (value) => value !== null && typeof value === "object", {});
  }

  set parameters(values) {
    this.#write(PARAMETERS, values);
  }

  /** The id of the conversation that was open last. */
  get current() {
    return this.#read(CURRENT, (value) => typeof value === "string", "");
  }

  set current(id) {
    this.#write(CURRENT, id);
  }

  #text(key) {
    return this.#unsaved.get(key) ?? this.#storage?.getItem(key) ?? null;
  }

  #read(key, isGood, otherwise) {
    try {
      const value = JSON.parse(this.#text(key));
      return isGood(value) ? value : otherwise;
    } catch {
      return otherwise; // damaged by another program or another version
    }
  }

  #write(key, value) {
    const text = JSON.stringify(value);
    try {
      this.#storage.setItem(key, text);
      this.#unsaved.delete(key);
    } catch (error) {
      this.#unsaved.set(key, text);
      if (!this.#told) this.#onTrouble(error.name === "QuotaExceededError" ? "full" : "blocked");
      this.#told = true;
    }
  }
}

/** A turn with its tokens as short lists: they are most of what is stored, and storage ends at some megabytes. */
function packed(turn) {
  const short = ({ text, logprob, drafter, round }) => [text, Math.round(logprob * 1e4) / 1e4, drafter, round];
  return turn.tokens ? { ...turn, tokens: turn.tokens.map(short) } : turn;
}

function unpacked(turn) {
  const long = ([text, logprob, drafter, round]) => ({ text, logprob, drafter, round });
  return turn.tokens ? { ...turn, tokens: turn.tokens.map(long) } : turn;
}

/** Whether this is a turn as `packed` leaves it. */
function isTurn({ role, content, tokens }) {
  return typeof content === "string" && (role === "user" ? !tokens : tokens.every(Array.isArray));
}

export function newConversation() {
  return { id: newId(), title: "", turns: [], updated: Date.now() };
}

/** `crypto.randomUUID` exists only on loopback and behind TLS. */
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
