/** Puts the page together: what the server says about itself, the two views, and what belongs to both. */

import { serverFacts } from "./api.js";
import { Chat } from "./chat.js";
import { button, byId, element } from "./dom.js";
import { currentKey } from "./key.js";
import { dismiss, notify } from "./notices.js";
import { Parameters } from "./parameters.js";
import { Race } from "./race.js";
import { Sidebar } from "./sidebar.js";
import { newConversation, Store } from "./store.js";
import { hideBubble } from "./token_view.js";

const EXAMPLES = [
  "Explain how a bicycle stays upright.",
  "Write a Python function that merges two sorted lists, with tests.",
  "Correct the spelling and repeat the text: Teh quick brown fox jumpd over teh lazy dog.",
];
const RACE_EXAMPLE = "Write a Python class for a bank account, then write it again with type hints.";

const STORAGE = {
  full: "The browser's storage is full: what is new is lost when the page is closed. Delete conversations to make room.",
  blocked: "The browser does not let this page store anything: conversations are lost when the page is closed.",
};

const store = new Store((reason) => notify("storage", STORAGE[reason]));
const parameters = new Parameters(store);
const sidebar = new Sidebar(store, { onOpen: openConversation, onRename: renameConversation });
const chat = new Chat(parameters, keepConversation, showState);
const race = new Race(parameters, () => !chat.isRunning);

function keepConversation(conversation) {
  store.save(conversation);
  if (conversation === chat.conversation) store.current = conversation.id;
  sidebar.show();
}

function openConversation(conversation) {
  chat.open(conversation ?? newConversation());
  store.current = chat.conversation.id;
  location.hash = "chat";
  sidebar.show();
  byId("prompt").focus();
}

function renameConversation(id, title) {
  store.rename(id, title);
  if (chat.conversation.id === id) chat.conversation.title = title;
}

function showState() {
  byId("send").hidden = chat.isRunning;
  byId("stop").hidden = !chat.isRunning;
}

function showView() {
  const isRace = location.hash === "#race";
  byId("chat").hidden = isRace;
  byId("race").hidden = !isRace;
  byId("draft-view").hidden = isRace;
  byId("skip").href = isRace ? "#race-prompt" : "#prompt";
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === (isRace ? "#race" : "#chat")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function submit() {
  const prompt = byId("prompt");
  const text = prompt.value.trim();
  if (!text || chat.isRunning) return;
  race.endReplay();
  if (race.isRunning) {
    notify("busy", "A race is running. Wait for its end, or stop it first.");
    return;
  }
  if (!chat.send(text)) return;
  dismiss("busy");
  prompt.value = "";
  fit(prompt);
}

/** As high as its text, within the limits of the style sheet. */
function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

async function connect() {
  try {
    const { model, defaults, contextLength } = await serverFacts();
    chat.model = race.model = model;
    byId("model").textContent = model;
    byId("model").title = `The model that answers; a conversation may have ${contextLength} tokens`;
    parameters.showDefaults(defaults);
    dismiss("server");
  } catch (error) {
    notify("server", error.message, ["Try again", connect]);
  }
}

function listen() {
  const prompt = byId("prompt");
  byId("composer").onsubmit = (event) => {
    event.preventDefault();
    submit();
  };
  prompt.oninput = () => fit(prompt);
  prompt.onkeydown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  };
  byId("stop").onclick = () => {
    chat.stop();
    prompt.focus();
  };
  byId("draft-view").onclick = ({ currentTarget }) => {
    const pressed = currentTarget.getAttribute("aria-pressed") !== "true";
    currentTarget.setAttribute("aria-pressed", String(pressed));
    chat.showAsTokens(pressed);
  };
  byId("skip").onclick = (event) => {
    event.preventDefault(); // the address says which view is open
    byId(new URL(event.currentTarget.href).hash.slice(1)).focus();
  };
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || byId("key-dialog").open) return;
    hideBubble();
    (byId("race").hidden ? chat : race).stop();
  });
  addEventListener("hashchange", showView);
  addEventListener("pagehide", () => chat.keep());
  addEventListener("storage", ({ key }) => {
    const { id } = chat.conversation;
    const stored = store.changedElsewhere(key, id);
    if (stored) chat.refresh(stored);
    sidebar.show();
  });
}

byId("examples").append(
  ...EXAMPLES.map((text) =>
    element(
      "li",
      {},
      button(text, () => {
        byId("prompt").value = text;
        fit(byId("prompt"));
        byId("prompt").focus();
      }),
    ),
  ),
);
byId("race-prompt").value = RACE_EXAMPLE;
listen();
showView();
chat.open(store.load(store.current) ?? newConversation());
sidebar.show();

const key = currentKey();
await connect();
if (currentKey() !== key) chat.open(chat.conversation); // its Markdown may have been refused without the key
