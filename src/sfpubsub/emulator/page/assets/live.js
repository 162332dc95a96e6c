// Applies the updates that the emulator sends to the open page. The page works without it.
"use strict";

const MOST = 50; // maximum entries of a list to which updates add
const state = document.getElementById("live-state");
const stream = new EventSource(document.body.dataset.live);

function said(text) {
  // Screen readers announce every assignment, even of the same text.
  if (state.textContent !== text) state.textContent = text;
}

function place(event) {
  const { id, html } = JSON.parse(event.data);
  return [document.getElementById(id), html];
}

stream.addEventListener("open", () => said("Live updates are on."));
stream.addEventListener("error", () => said("Live updates have stopped; reconnecting."));

stream.addEventListener("put", (event) => {
  const [element, html] = place(event);
  if (element) element.innerHTML = html;
});

stream.addEventListener("add", (event) => {
  const [element, html] = place(event);
  if (!element) return;
  element.insertAdjacentHTML("afterbegin", html);
  while (element.children.length > MOST) element.lastElementChild.remove();
});
