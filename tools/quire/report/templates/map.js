/* SPDX-License-Identifier: MIT */
/* map.js - the zoom of maps: a square opens into its pages, a page into its slots.
 *
 *   the still picture's squares --+-> spots {node, x, y, side}  ->  one more <g> laid over what is in view
 *   figures of the element #raw --+   node: {share, n, at(i), text()}, n nodes deeper, 0 where it ends
 *
 * The picture stays as it came: only its viewBox moves.  Without scripts, and in print, all of it is seen.
 * Not here: the picture (report/map.py, report/slots.py), how pages are packed (report/depth.py). */
"use strict";
(function () {
  var COLUMNS = 96, PITCH = 10, SIDE = 8, SHADES = 9;  /* as in report/map.py */
  var OPEN_PX = 5, ZOOM_MAX = 256, HEIGHT_PX_MIN = 400, HEIGHT_OF_WINDOW_MAX = 0.75, ALL_FROM = 0.999, STEP = 2, TAP_PX = 4, INSET = 0.9;
  var GRAINS = 256, GRAIN_BYTES = 16;
  var NS = "http://www.w3.org/2000/svg";
  var data = JSON.parse(document.getElementById("raw").textContent);

  /* Words. */
  function size(bytes) {
    var units = ["B", "KB", "MB", "GB", "TB"], i = 0;
    while (bytes >= 1000 && i < 4) { bytes /= 1000; i++; }
    return (i ? bytes.toFixed(1) : bytes) + " " + units[i];
  }
  function percent(part, whole) {  /* never rounded up to all or down to nothing */
    if (part <= 0 || part >= whole) { return part > 0 ? "100 %" : "0 %"; }
    return Math.min(99, Math.max(1, Math.round(100 * part / whole))) + " %";
  }
  function hex(address) { return "0x" + address.toString(16); }
  function plain(name) {  /* a name from a program: nothing in it breaks a line or turns the writing */
    return String(name).replace(/[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, "\ufffd");
  }
  function isLive(bits, i) { return parseInt(bits[i >> 2] || "0", 16) >> (i & 3) & 1; }
  function count(bits, first, end) {
    var live = 0;
    for (var i = first; i < end; i++) { live += isLive(bits, i); }
    return live;
  }

  /* A trace's map: blocks, their pages, a page's grains of 16 bytes. */
  function siteText(id) {
    var lists = [data.profile.sites, data.findings.sites || []];
    for (var i = 0; i < lists.length; i++) {
      for (var k = 0; k < lists[i].length; k++) {
        if (lists[i][k].id === id) { return "\nmostly " + plain(lists[i][k].function); }
      }
    }
    return "\nmostly site " + id;
  }
  function bytesText(address, bytes, live, site) {
    return hex(address) + ", " + size(bytes) + ": " + percent(live, bytes) + " live, " + size(live) + (live ? siteText(site) : "");
  }
  function grainNode(page, i) {
    var live = isLive(page.grains, i);
    return { share: live, n: 0, text: function () {
      return GRAIN_BYTES + " B at " + hex(page.address + i * GRAIN_BYTES) + ": " + (live ? "live" : "free") + "\nin the page " + page.text();
    } };
  }
  function pageNode(map, region, pages, i) {
    var live = pages.bytes[i], grains = pages.grains[i], address = parseInt(region.address, 16) + i * map.page_bytes;
    var page = { share: live / map.page_bytes, address: address, grains: grains, n: grains === undefined ? 0 : GRAINS };
    page.at = function (k) { return grainNode(page, k); };
    page.text = function () {
      var touched = page.n ? "\n" + count(grains, 0, GRAINS) + " of its " + GRAINS + " pieces of 16 B hold live bytes" :
        map.page_bytes === GRAINS * GRAIN_BYTES ? "\nno deeper: its pieces of 16 B were left out, for want of room" : "";
      return bytesText(address, map.page_bytes, live, pages.sites[i]) + touched;
    };
    return page;
  }
  function blockNode(map, number, i) {
    var region = map.regions[number], block = region.blocks[i], pages = map.pages && map.pages[number];
    var each = map.block_bytes / (map.page_bytes || map.block_bytes), node;
    if (pages && each === 1) { return pageNode(map, region, pages, i); }
    node = { share: block[0] / map.block_bytes, n: pages ? Math.min(each, pages.bytes.length - i * each) : 0 };
    node.at = function (k) { return pageNode(map, region, pages, i * each + k); };
    node.text = function () {
      var many = node.n ? "\n" + node.n + " page" + (node.n > 1 ? "s" : "") : "";
      return bytesText(parseInt(region.address, 16) + i * map.block_bytes, map.block_bytes, block[0], block[1]) + many;
    };
    return node;
  }
  function regionGroup(map, g) {
    var number = +g.dataset.region;
    return { top: +g.dataset.top, count: map.regions[number].blocks.length, node: function (i) { return blockNode(map, number, i); } };
  }

  /* A process's map: pages, their slots. */
  function pageText(page) {
    return "page " + page.address + " of " + plain(page.kind + " " + (page.name || "-")) + " (id " + page.id + ")\n" +
      size(page.page_bytes) + ", " + page.slots + " slots of " + page.slot_bytes + " B: " + page.live + " live, " +
      percent(page.live, page.slots) + ", " + size(page.live * page.slot_bytes);
  }
  function slotNode(page, i) {
    var live = isLive(page.bits, i);
    return { share: live, n: 0, text: function () {
      return "slot " + i + " at " + hex(parseInt(page.address, 16) + i * page.slot_bytes) + ": " + (live ? "live" : "free") + "\n" + pageText(page);
    } };
  }
  function partNode(page, first, end) {  /* a square of a strip: one slot or some */
    var live = count(page.bits, first, end);
    if (end - first === 1) { return slotNode(page, first); }
    return { share: live / (end - first), n: end - first, at: function (i) { return slotNode(page, first + i); }, text: function () {
      return "slots " + first + " to " + (end - 1) + ": " + live + " live\n" + pageText(page);
    } };
  }
  function stripGroup(g) {
    var page = data.pages[+g.dataset.page], cells = Math.max(1, Math.min(COLUMNS, page.slots));
    return { top: +g.dataset.top, count: cells, node: function (i) {
      return partNode(page, Math.floor(i * page.slots / cells), Math.floor((i + 1) * page.slots / cells));
    } };
  }
  function gridGroup(g) {
    var numbers = g.dataset.pages.split(" ");
    return { top: +g.dataset.top, count: numbers.length, node: function (i) {
      var page = data.pages[+numbers[i]];
      return { share: page.live / Math.max(1, page.slots), n: page.slots, at: function (k) { return slotNode(page, k); }, text: function () { return pageText(page); } };
    } };
  }

  /* Drawing what is in view. */
  function shade(share) { return share <= 0 ? "void" : "h" + Math.min(SHADES - 1, Math.floor(share * SHADES)); }
  function columns(node) { return Math.ceil(Math.sqrt(node.n)); }
  function opens(spot, scale) { return spot.node.n > 0 && spot.side / columns(spot.node) * scale >= OPEN_PX; }
  function deeper(spot, i) {
    var cell = spot.side / columns(spot.node);
    var edge = cell * (1 - INSET) / 2;
    return { node: spot.node.at(i), x: spot.x + i % columns(spot.node) * cell + edge, y: spot.y + Math.floor(i / columns(spot.node)) * cell + edge, side: cell * INSET, pitch: cell };
  }
  function square(spot) {
    var side = spot.side.toFixed(4);
    return "M" + spot.x.toFixed(4) + " " + spot.y.toFixed(4) + "h" + side + "v" + side + "h-" + side + "z";
  }
  function put(paths, name, spot) { (paths[name] = paths[name] || []).push(square(spot)); }
  function span(from, to, start, pitch, most) {  /* first and last of those that lie between from and to */
    return [Math.max(0, Math.floor((from - start) / pitch)), Math.min(most - 1, Math.floor((to - start) / pitch))];
  }
  function lay(paths, spot, seen) {
    var across = columns(spot.node), cell = spot.side / across, i, row, column, inner;
    var xs = span(seen.x, seen.x + seen.w, spot.x, cell, across), ys = span(seen.y, seen.y + seen.h, spot.y, cell, across);
    put(paths, "paper", spot);
    for (row = ys[0]; row <= ys[1]; row++) {
      for (column = xs[0]; column <= xs[1] && (i = row * across + column) < spot.node.n; column++) {
        inner = deeper(spot, i);
        if (opens(inner, seen.scale)) { lay(paths, inner, seen); } else { put(paths, shade(inner.node.share), inner); }
      }
    }
  }
  function top(group, i) {
    return { node: group.node(i), x: i % COLUMNS * PITCH, y: group.top + Math.floor(i / COLUMNS) * PITCH, side: SIDE, pitch: PITCH };
  }
  function paths(groups, seen) {
    var found = {};
    groups.forEach(function (group) {
      var ys = span(seen.y, seen.y + seen.h, group.top, PITCH, Math.ceil(group.count / COLUMNS)), xs = span(seen.x, seen.x + seen.w, 0, PITCH, COLUMNS);
      for (var row = ys[0]; row <= ys[1]; row++) {
        for (var i = row * COLUMNS + xs[0]; i <= row * COLUMNS + xs[1] && i < group.count; i++) {
          var spot = top(group, i);
          if (opens(spot, seen.scale)) { lay(found, spot, seen); }
        }
      }
    });
    return found;
  }
  /* What is drawn at a point; null between groups. */
  function find(groups, x, y, scale) {
    var spot = null;
    groups.forEach(function (group) {
      var row = Math.floor((y - group.top) / PITCH), column = Math.floor(x / PITCH), i = row * COLUMNS + column;
      if (row >= 0 && column >= 0 && column < COLUMNS && i < group.count) { spot = top(group, i); }
    });
    while (spot && opens(spot, scale)) {
      var across = columns(spot.node), cell = spot.side / across;
      var at = [x - spot.x, y - spot.y].map(function (v) { return Math.max(0, Math.min(across - 1, Math.floor(v / cell))); });
      if (at[1] * across + at[0] >= spot.node.n) { break; }
      spot = deeper(spot, at[1] * across + at[0]);
    }
    return spot;
  }
  /* The square of a map that is next to a point. */
  function nearest(groups, x, y) {
    var best = null, far = Infinity;
    groups.forEach(function (group) {
      var rows = Math.ceil(group.count / COLUMNS), row = Math.max(0, Math.min(rows - 1, Math.floor((y - group.top) / PITCH)));
      var last = Math.min(COLUMNS, group.count - row * COLUMNS) - 1, column = Math.max(0, Math.min(last, Math.floor(x / PITCH)));
      var spot = top(group, row * COLUMNS + column), away = Math.hypot(spot.x + SIDE / 2 - x, spot.y + SIDE / 2 - y);
      if (away < far) { far = away; best = spot; }
    });
    return best;
  }
  function between(low, value, high) { return Math.max(low, Math.min(high, value)); }
  function made(name, parent, word) {
    var element = parent.namespaceURI === NS ? document.createElementNS(NS, name) : document.createElement(name);
    element.setAttribute("class", word);
    return parent.appendChild(element);
  }

  function zoomable(svg, groups) {
    var W = svg.viewBox.baseVal.width, H = svg.viewBox.baseVal.height, view = { x: 0, y: 0, w: W };
    var cursor = null, fingers = {}, moved = 0, deep = made("g", svg, "deep"), says, buttons = [];

    function height() {  /* of a zoomed map, as a part of its width: neither a slit nor taller than the window */
      var width = Math.max(1, svg.getBoundingClientRect().width), most = Math.max(HEIGHT_PX_MIN, window.innerHeight * HEIGHT_OF_WINDOW_MAX);
      return between(HEIGHT_PX_MIN, H / W * width, most) / width;
    }
    function scale() { return view.w < W ? svg.getBoundingClientRect().width / view.w : 0; }  /* 0: nothing opens while all is seen */
    function tall() { return view.w < W ? view.w * height() : H; }
    function here() { return cursor && find(groups, cursor.x, cursor.y, scale()); }
    function point(event) {
      var box = svg.getBoundingClientRect(), unit = view.w / box.width;
      return { x: view.x + (event.clientX - box.left) * unit, y: view.y + (event.clientY - box.top) * unit };
    }
    function redraw() {
      var seen = { x: view.x, y: view.y, w: view.w, h: tall(), scale: scale() }, found = seen.scale ? paths(groups, seen) : {}, spot = here();
      svg.setAttribute("viewBox", [seen.x, seen.y, seen.w, seen.h].join(" "));
      svg.classList.toggle("zoomed", view.w < W);
      deep.textContent = "";
      Object.keys(found).sort(function (a, b) { return (b === "paper") - (a === "paper"); }).forEach(function (name) {
        made("path", deep, name).setAttribute("d", found[name].join(""));
      });
      if (spot) { made("path", deep, "on").setAttribute("d", square(spot)); }
      says.textContent = (view.w < W ? "× " + (W / view.w).toFixed(W / view.w < 10 ? 1 : 0) + "   " : "") + (spot ? spot.node.text() : "");
      buttons[0].disabled = W / view.w >= ZOOM_MAX;
      buttons[1].disabled = buttons[2].disabled = view.w >= W;
    }
    /* `at` comes to lie in the middle, or where `event` is on the screen. */
    function look(wide, at, event) {
      var before = view.w < W, box, high, fx = 0.5, fy = 0.5;
      view.w = wide > W * ALL_FROM ? W : Math.max(W / ZOOM_MAX, wide);
      svg.classList.toggle("zoomed", view.w < W);
      box = svg.getBoundingClientRect();
      high = tall();
      if (event) {
        fx = between(0, (event.clientX - box.left) / box.width, 1);
        fy = between(0, (event.clientY - box.top) / (high / view.w * box.width), 1);
      }
      view.x = between(0, at.x - fx * view.w, W - view.w);
      view.y = between(0, at.y - fy * high, Math.max(0, H - high));
      redraw();
      if (before !== view.w < W && event) {  /* a tall picture has become a window, or the other way round: what was there stays there */
        box = svg.getBoundingClientRect();
        window.scrollBy(0, box.top + (at.y - view.y) * box.width / view.w - event.clientY);
      } else if (!before && view.w < W) {
        svg.scrollIntoView({ block: "nearest" });
      }
    }
    function all() { look(W, { x: 0, y: 0 }); }
    function middle() {  /* of what is on the screen */
      var box = svg.getBoundingClientRect(), frame = svg.parentElement.getBoundingClientRect();
      var left = Math.max(box.left, frame.left), right = Math.min(box.right, frame.right), high = Math.max(0, box.top), low = Math.min(box.bottom, window.innerHeight);
      return point({ clientX: (left + right) / 2, clientY: low > high ? (high + low) / 2 : (box.top + box.bottom) / 2 });
    }
    function settle() {  /* a cursor for those who have no pointer */
      if (!cursor) {
        var seen = middle(), spot = nearest(groups, seen.x, seen.y);
        cursor = { x: spot.x + spot.side / 2, y: spot.y + spot.side / 2 };
      }
    }
    function zoom(factor) {
      settle();
      look(view.w / factor, cursor);
    }
    function zoomAt(factor, event) { look(view.w / factor, point(event), event); }
    function step(dx, dy) {
      settle();
      var from = here() || nearest(groups, cursor.x, cursor.y), x = from.x + from.side / 2, y = from.y + from.side / 2, to = null;
      while (!to || (to.x === from.x && to.y === from.y)) {
        x += dx * from.pitch / 2;
        y += dy * from.pitch / 2;
        if (x < 0 || x > W || y < 0 || y > H) { return; }
        to = find(groups, x, y, scale());
      }
      cursor = { x: to.x + to.side / 2, y: to.y + to.side / 2 };
      look(view.w, cursor);
    }
    var keys = {
      "+": function () { zoom(STEP); }, "=": function () { zoom(STEP); }, "-": function () { zoom(1 / STEP); }, "_": function () { zoom(1 / STEP); },
      Home: all, "0": all, ArrowLeft: function () { step(-1, 0); }, ArrowRight: function () { step(1, 0); },
      ArrowUp: function () { step(0, -1); }, ArrowDown: function () { step(0, 1); }
    };
    function controls() {
      var bar = document.createElement("p"), frame = svg.parentElement;
      bar.className = "zoombar";
      [["+", "zoom in", function () { zoom(STEP); }], ["\u2212", "zoom out", function () { zoom(1 / STEP); }], ["all", "show all of the map", all]].forEach(function (one) {
        var button = made("button", bar, "plain");
        button.textContent = one[0];
        button.title = one[1];
        button.setAttribute("aria-label", one[1]);
        button.addEventListener("click", one[2]);
        buttons.push(button);
      });
      frame.parentElement.insertBefore(bar, frame);
      says = document.createElement("p");
      says.className = "says soft";
      says.setAttribute("role", "status");
      frame.parentElement.insertBefore(says, frame.nextSibling);
      svg.setAttribute("tabindex", "0");
      svg.setAttribute("role", "application");
      svg.setAttribute("aria-label", svg.querySelector("title").textContent + ": plus and minus zoom, arrows move, Home shows all");
      svg.querySelector("title").remove();  /* our own pointer text takes its place */
    }
    function pointers() {
      function pair() {
        var two = Object.keys(fingers).map(function (id) { return fingers[id]; }), far = two[1] || two[0];
        return { clientX: (two[0].clientX + far.clientX) / 2, clientY: (two[0].clientY + far.clientY) / 2, apart: Math.hypot(two[0].clientX - far.clientX, two[0].clientY - far.clientY) };
      }
      svg.addEventListener("pointerdown", function (event) {
        moved = Object.keys(fingers).length ? TAP_PX : 0;
        fingers[event.pointerId] = event;
      });
      svg.addEventListener("pointermove", function (event) {
        if (!fingers[event.pointerId]) { return; }
        var before = pair(), at = point(before), after;
        fingers[event.pointerId] = event;
        after = pair();
        moved += Math.hypot(after.clientX - before.clientX, after.clientY - before.clientY);
        if (moved < TAP_PX || (view.w >= W && !before.apart)) { return; }
        svg.setPointerCapture(event.pointerId);
        look(view.w * (before.apart ? before.apart / Math.max(1, after.apart) : 1), at, after);
      });
      ["pointerup", "pointercancel"].forEach(function (name) {
        svg.addEventListener(name, function (event) {
          var tapped = fingers[event.pointerId] && moved < TAP_PX && name === "pointerup";
          delete fingers[event.pointerId];
          if (tapped) { cursor = point(event); redraw(); }
        });
      });
      svg.addEventListener("touchmove", function (event) {  /* two fingers are ours, one scrolls the page until the map is zoomed */
        if (event.cancelable && (event.touches.length > 1 || view.w < W)) { event.preventDefault(); }
      }, { passive: false });
      svg.addEventListener("mousemove", function (event) {
        var at = point(event), spot = find(groups, at.x, at.y, scale());
        window.quireSay(spot ? spot.node.text() : "", event);
      });
      svg.addEventListener("mouseleave", function (event) { window.quireSay("", event); });
      svg.addEventListener("dblclick", function (event) { zoomAt(STEP, event); });
    }
    controls();
    pointers();
    svg.addEventListener("wheel", function (event) {
      /* a wheel that only passes by scrolls the page: it zooms a map that was clicked on, is zoomed, or with Ctrl (so comes a pinch) */
      var wanted = event.ctrlKey || view.w < W || document.activeElement === svg;
      if (!wanted || (view.w >= W && event.deltaY > 0 && !event.ctrlKey)) { return; }
      event.preventDefault();
      zoomAt(Math.exp(-between(-300, event.deltaY * (event.deltaMode ? 30 : 1), 300) / 250), event);
    }, { passive: false });
    svg.addEventListener("keydown", function (event) {
      if (keys[event.key] && !event.ctrlKey && !event.altKey && !event.metaKey) {
        event.preventDefault();
        keys[event.key]();
      }
    });
    svg.addEventListener("focus", function () {
      if (svg.matches(":focus-visible")) { settle(); redraw(); }
    });
    window.addEventListener("resize", redraw);
    window.addEventListener("beforeprint", all);
    redraw();
    return redraw;
  }

  /* Pages are packed: see report/depth.py.  A browser that cannot unpack them zooms as far as blocks. */
  function unpack(map, ready) {
    if (!map.depth || !window.DecompressionStream) { return ready("blocks"); }
    var bytes = Uint8Array.from(atob(map.depth.packed), function (c) { return c.charCodeAt(0); });
    new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json().then(function (pages) {
      map.pages = pages;
      ready("pages");
    }, function () { ready("blocks"); });
  }
  document.querySelectorAll("svg.map").forEach(function (svg) {
    var map = data.profile && data.profile[svg.dataset.map], list = Array.from(svg.querySelectorAll("g[data-top]")), redraw;
    redraw = zoomable(svg, list.map(function (g) {
      return map ? regionGroup(map, g) : g.dataset.page ? stripGroup(g) : gridGroup(g);
    }));
    if (!map) { svg.dataset.depth = "slots"; return; }
    unpack(map, function (word) { svg.dataset.depth = word; redraw(); });
  });
})();
