"use strict";
// Stands before all that could go wrong, for what the browser refuses is told only to those who listen by then:
// whatever goes wrong is shown on the page, not only in a console that nobody opens.

function tellProblem(text) {
  const box = document.getElementById("problems");
  if (box.hidden) {
    box.hidden = false;
    box.append("Part of this report could not be drawn. The figures themselves are in the file. ");
  }
  const line = document.createElement("div");
  line.textContent = text;
  box.append(line);
  const root = document.documentElement;
  root.dataset.problems = String(Number(root.dataset.problems || 0) + 1);
}

document.documentElement.dataset.problems = "0";
window.addEventListener("error", (event) => tellProblem(event.message || "an error without a message"));
window.addEventListener("unhandledrejection", (event) => tellProblem(String(event.reason)));
document.addEventListener("securitypolicyviolation", (event) =>
  tellProblem("refused by the page's own policy: " + event.violatedDirective + " " + event.blockedURI));
