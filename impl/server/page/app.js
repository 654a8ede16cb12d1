"use strict";

fetch("v1/version")
  .then((answer) => answer.json())
  .then((told) => { document.getElementById("status").textContent = `Version ${told.version}.`; });
