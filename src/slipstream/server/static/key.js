/** The API key, for servers that want one: asked for in a dialog, kept until the tab is closed. */

import { byId } from "./dom.js";

const NAME = "slipstream.key";

let key = remembered();
let asking = null;

export const currentKey = () => key;

/** Asks for a key, once for all requests that wait for one. The key, or null if the dialog was closed. */
export function askForKey(refused) {
  asking ??= open(refused).finally(() => {
    asking = null;
  });
  return asking;
}

function open(refused) {
  const dialog = byId("key-dialog");
  const field = byId("key");
  field.value = "";
  byId("key-reason").textContent = refused ? "The server does not accept the key that was given." : "";
  return new Promise((resolve) => {
    const finish = (answer) => {
      dialog.onclose = null;
      dialog.close();
      resolve(answer);
    };
    dialog.onclose = () => finish(null); // Escape
    byId("key-cancel").onclick = () => finish(null);
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      key = field.value.trim();
      remember(key);
      finish(key);
    };
    dialog.showModal();
    field.focus();
  });
}

function remembered() {
  try {
    return sessionStorage.getItem(NAME);
  } catch {
    return null; // storage is blocked: the key lives as long as the page
  }
}

function remember(value) {
  try {
    sessionStorage.setItem(NAME, value);
  } catch {
    // As above.
  }
}
