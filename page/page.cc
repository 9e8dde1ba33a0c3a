#include "page/page.h"

#include "absl/strings/str_cat.h"
#include "page/svg.h"

namespace tacc {
namespace {

constexpr char kStyle[] = R"CSS(
:root{color-scheme:light dark;--bg:#f6f6f4;--card:#fff;--fg:#1c1d20;--muted:#62646c;--line:#dcdce0;--node:#f0f0ee;
--forward:#3f72c4;--backward:#2f9482;--update:#8a5fb5;--hidden:#d8b26a;--exposed:#d4622f;--idle:#c3c4c9;--limit:#c22f3d;
--g0:#3f72c4;--g1:#d4622f;--g2:#2f9482;--g3:#8a5fb5;--g4:#b08a1e;--g5:#c2497c;--g6:#4f8f3a;--g7:#5c6b86}
@media (prefers-color-scheme:dark){:root{--bg:#141518;--card:#1d1f23;--fg:#e8e8ea;--muted:#a0a2aa;--line:#34363c;--node:#26282d;
--forward:#5d8fe0;--backward:#45b09c;--update:#a57fd0;--hidden:#a8873f;--exposed:#e57a47;--idle:#4c4e55;--limit:#ef5f6b;
--g0:#5d8fe0;--g1:#e57a47;--g2:#45b09c;--g3:#a57fd0;--g4:#c9a23a;--g5:#da6a98;--g6:#69ad52;--g7:#7c8cab}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1160px;margin:0 auto;padding:20px 16px 48px}h1{font-size:26px;margin:8px 0 2px}h2{font-size:18px;margin:0 0 10px}
p{margin:0 0 10px;max-width:85ch}.sub,.note{color:var(--muted)}.note{font-size:14px}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px;margin:14px 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;margin:16px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:10px 14px}.tile b{display:block;font-size:23px}.tile span{color:var(--muted);font-size:14px}
.wide{overflow-x:auto}svg{display:block;width:100%;min-width:900px;height:auto}
svg text{fill:var(--fg);font:13px system-ui,sans-serif}svg .tick{fill:var(--muted);font-size:12px}svg .end{text-anchor:end}svg .middle{text-anchor:middle}
svg .on{fill:#fff;font-size:12px;pointer-events:none}svg .tight{font-size:9.5px}.grid{stroke:var(--line)}.node{fill:var(--node);stroke:var(--line);rx:8px}.device{rx:5px}
.g0,.m1,.t0{fill:var(--g0)}.g1{fill:var(--g1)}.g2,.m3,.t1{fill:var(--g2)}.g3,.m2,.t3{fill:var(--g3)}.g4,.t2{fill:var(--g4)}.g5,.t4{fill:var(--g5)}.g6{fill:var(--g6)}.g7{fill:var(--g7)}
.m0,.m4{fill:var(--g7)}.m4{opacity:.6}.m5{fill:var(--hidden)}.forward{fill:var(--forward)}.backward{fill:var(--backward)}.update{fill:var(--update)}
.hidden{fill:var(--hidden)}.exposed{fill:var(--exposed)}.idle{fill:var(--idle)}.limit{stroke:var(--limit);stroke-width:2}.planned{stroke:var(--fg);stroke-dasharray:6 4}
.gpu{cursor:pointer}.gpu.peer rect{stroke:var(--fg);stroke-width:3px}.dim rect.device{opacity:.35}
.key{display:inline-block;width:11px;height:11px;border-radius:3px;margin:0 5px 0 0}.entry{display:inline-block;margin-right:14px}
button{font:inherit;font-size:14px;color:var(--fg);background:var(--node);border:1px solid var(--line);border-radius:16px;padding:3px 12px;margin:0 6px 8px 0;cursor:pointer}
button[aria-pressed=true]{background:var(--forward);color:#fff;border-color:var(--forward)}
table{border-collapse:collapse;width:100%;font-size:14px}th{color:var(--muted);font-weight:500;text-align:left}th,td{padding:5px 10px 5px 0;border-top:1px solid var(--line);vertical-align:top}
tr:first-child th{border-top:0}td.n,th.n{text-align:right;white-space:nowrap}.why{min-width:260px}tr.taken td{font-weight:600}
input[type=range]{width:min(320px,60%);vertical-align:middle}
)CSS";

// Without it the page shows the same, but the timeline cannot be zoomed.
constexpr char kTimelineScript[] = R"JS(
(function(){
var timeline=document.querySelector('#timeline svg'),zoom=document.getElementById('zoom');
if(timeline&&zoom){var box=timeline.viewBox.baseVal,width=box.width,rects=[].slice.call(timeline.querySelectorAll('rect')),lines=[].slice.call(timeline.querySelectorAll('line')),ticks=[].slice.call(timeline.querySelectorAll('text.middle,text.end'));
[rects,ticks].forEach(function(l){l.forEach(function(r){r.x0=+r.getAttribute('x');r.w0=+r.getAttribute('width')})});lines.forEach(function(l){l.x0=+l.getAttribute('x1')});
var labels=document.createElementNS('http://www.w3.org/2000/svg','g');timeline.appendChild(labels);
var draw=function(){var z=+zoom.value;timeline.setAttribute('viewBox','0 0 '+width*z+' '+box.height);timeline.style.width=100*z+'%';
labels.textContent='';rects.forEach(function(r){r.setAttribute('x',r.x0*z);r.setAttribute('width',r.w0*z);
if(r.w0*z>7.2*r.dataset.l.length+6){var t=document.createElementNS('http://www.w3.org/2000/svg','text');t.setAttribute('class','on');t.setAttribute('x',r.x0*z+4);t.setAttribute('y',+r.getAttribute('y')+(+r.getAttribute('height')>20?17:11));t.textContent=r.dataset.l;labels.appendChild(t)}});
lines.forEach(function(l){l.setAttribute('x1',l.x0*z);l.setAttribute('x2',l.x0*z)});ticks.forEach(function(t){t.setAttribute('x',t.x0*z)})};
zoom.oninput=draw;draw()}
})();
)JS";

}  // namespace

std::string Page(const PageHead& head, const std::string& body, const std::string& script) {
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>",
      svg::Escaped(head.title), "</title>\n<style>", kStyle, "</style></head>\n<body><main>\n<h1>",
      svg::Escaped(head.heading), "</h1>\n<p class=\"sub\">", svg::Escaped(head.subtitle), "</p>\n", body,
      "</main>\n<script>", script, kTimelineScript, "</script>\n</body></html>\n");
}

std::string Section(const std::string& title, const std::string& body) {
  return absl::StrCat("<section><h2>", svg::Escaped(title), "</h2>\n", body, "</section>\n");
}

std::string Key(const std::string& css, const std::string& text) {
  return absl::StrCat("<span class=\"entry\"><span class=\"key\" style=\"background:var(--", css, ")\"></span>",
                      svg::Escaped(text), "</span> ");
}

std::string TableRow(const char* tag, const std::vector<std::string>& cells, size_t first_number, size_t last_number) {
  std::string row;
  for (size_t i = 0; i < cells.size(); ++i) {
    const bool number = i >= first_number && i <= last_number;
    absl::StrAppend(&row, "<", tag,
                    number                  ? " class=\"n\">"
                    : i + 1 == cells.size() ? " class=\"why\">"
                                            : ">",
                    svg::Escaped(cells[i]), "</", tag, ">");
  }
  return row;
}

std::string ZoomedTimeline(const std::string& svg) {
  return absl::StrCat(
      "<p class=\"note\"><label>zoom <input type=\"range\" id=\"zoom\" min=\"1\" max=\"40\" value=\"1\"></label></p>\n"
      "<div class=\"wide\" id=\"timeline\">",
      svg, "</div>\n");
}

}  // namespace tacc
