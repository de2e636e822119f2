/* SPDX-License-Identifier: MIT */
/* base.js - only comforts: the page says everything without it.  Sorting, filtering, zooming, what the pointer is on. */
"use strict";
(function () {
  document.documentElement.classList.add("has-js");
  var tip = document.getElementById("tip");

  function say(text, event) {
    tip.textContent = text;
    tip.style.display = text ? "block" : "none";
    if (text) {
      var x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
      var y = event.clientY + 18;
      if (y + tip.offsetHeight > window.innerHeight) { y = event.clientY - tip.offsetHeight - 10; }
      tip.style.left = Math.max(4, x) + "px";
      tip.style.top = y + "px";
    }
  }

  /* Tables: a click on a column's name sorts by it; data-key is what a cell is sorted by. */
  function key(row, column) {
    var cell = row.cells[column], given = cell.getAttribute("data-key");
    return given === null ? cell.textContent.trim().toLowerCase() : parseFloat(given);
  }
  function sort(table, column, heading) {
    var up = heading.getAttribute("aria-sort") === "descending";
    table.querySelectorAll("th").forEach(function (th) { th.removeAttribute("aria-sort"); });
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    var body = table.tBodies[0], rows = Array.from(body.rows);
    rows.sort(function (a, b) {
      var x = key(a, column), y = key(b, column);
      return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
    });
    rows.forEach(function (row) { body.appendChild(row); });
  }
  document.querySelectorAll("table.sortable").forEach(function (table) {
    Array.from(table.tHead.rows[0].cells).forEach(function (th, column) {
      var button = document.createElement("button");
      button.textContent = th.textContent;
      th.textContent = "";
      th.appendChild(button);
      button.addEventListener("click", function () { sort(table, column, th); });
    });
  });

  document.querySelectorAll("input[data-filters]").forEach(function (input) {
    var name = input.getAttribute("data-filters"), count = document.getElementById(name + "-count");
    var tables = document.querySelectorAll("table[data-filter=" + name + "]");
    input.addEventListener("input", function () {
      var wanted = input.value.toLowerCase(), shown = 0, all = 0;
      tables.forEach(function (table) {
        var here = 0;
        Array.from(table.tBodies[0].rows).forEach(function (row) {
          row.hidden = row.textContent.toLowerCase().indexOf(wanted) < 0;
          here += row.hidden ? 0 : 1;
          all++;
        });
        shown += here;
        var fold = table.closest("details");
        if (fold) { fold.open = wanted !== "" && here > 0; }  /* what is found must be seen */
      });
      if (count) { count.textContent = shown + " of " + all; }
    });
  });

  /* Flame graphs: a click makes a box as wide as the picture. */
  function zoom(svg, target) {
    var width = parseFloat(svg.getAttribute("data-width"));
    var left = parseFloat(target.dataset.x), share = parseFloat(target.dataset.w), depth = +target.dataset.d;
    svg.querySelectorAll("g").forEach(function (g) {
      var x = (parseFloat(g.dataset.x) - left) / share, w = parseFloat(g.dataset.w) / share;
      var above = +g.dataset.d < depth && x <= 1e-9 && x + w >= 1 - 1e-9;
      if (above) { x = 0; w = 1; }
      var hidden = !above && (x + w <= 1e-6 || x >= 1 - 1e-6 || (+g.dataset.d < depth));
      g.style.display = hidden ? "none" : "";
      g.classList.toggle("faded", above);
      if (hidden) { return; }
      var rect = g.querySelector("rect"), text = g.querySelector("text");
      rect.setAttribute("x", (x * width).toFixed(2));
      rect.setAttribute("width", Math.max(0.4, w * width - 0.6).toFixed(2));
      text.setAttribute("x", (x * width + 4).toFixed(2));
      var name = g.dataset.name, room = Math.floor((w * width - 6) / 6.3);
      text.textContent = room < 3 ? "" : name.length <= room ? name : name.slice(0, room - 1) + "…";
    });
    svg.dataset.zoomed = depth;
  }
  document.querySelectorAll("svg.flame").forEach(function (svg) {
    svg.querySelectorAll("g").forEach(function (g) {
      var title = g.querySelector("title");
      g.dataset.tip = title.textContent;
      g.dataset.name = title.textContent.split("\n")[0];
      title.remove();  /* our own pointer text takes its place */
    });
    svg.addEventListener("click", function (event) {
      var g = event.target.closest("g");
      if (g) { zoom(svg, g); }
    });
    svg.addEventListener("mousemove", function (event) {
      var g = event.target.closest("g");
      say(g ? g.dataset.tip : "", event);
    });
    svg.addEventListener("mouseleave", function (event) { say("", event); });
  });
  document.querySelectorAll("button[data-reset]").forEach(function (button) {
    button.addEventListener("click", function () {
      var svg = document.getElementById(button.getAttribute("data-reset")).querySelector("svg.flame");
      if (svg) { zoom(svg, svg.querySelector("g")); }
    });
  });

  window.quireSay = say;  /* for the maps, templates/map.js */
})();
