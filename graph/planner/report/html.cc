#include "graph/planner/report/html.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "graph/planner/report/charts.h"
#include "graph/planner/report/words.h"

namespace tacc::graph {
namespace {

// Meshes that lost by estimate in the table; the others are worse.
constexpr size_t kMaxRows = 24;

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
svg .on{fill:#fff;font-size:12px;pointer-events:none}.grid{stroke:var(--line)}.node{fill:var(--node);stroke:var(--line);rx:8px}.device{rx:5px}
.g0,.m1,.t0{fill:var(--g0)}.g1{fill:var(--g1)}.g2,.m3,.t1{fill:var(--g2)}.g3,.m2,.t3{fill:var(--g3)}.g4,.t2{fill:var(--g4)}.g5,.t4{fill:var(--g5)}.g6{fill:var(--g6)}.g7{fill:var(--g7)}
.m0,.m4{fill:var(--g7)}.m4{opacity:.6}.m5{fill:var(--hidden)}.forward{fill:var(--forward)}.backward{fill:var(--backward)}.update{fill:var(--update)}
.hidden{fill:var(--hidden)}.exposed{fill:var(--exposed)}.idle{fill:var(--idle)}.limit{stroke:var(--limit);stroke-width:2}.planned{stroke:var(--fg);stroke-dasharray:6 4}
.gpu{cursor:pointer}.gpu.peer rect{stroke:var(--fg);stroke-width:3px}.dim rect.device{opacity:.35}
.key{display:inline-block;width:11px;height:11px;border-radius:3px;margin:0 5px 0 14px}
button{font:inherit;font-size:14px;color:var(--fg);background:var(--node);border:1px solid var(--line);border-radius:16px;padding:3px 12px;margin:0 6px 8px 0;cursor:pointer}
button[aria-pressed=true]{background:var(--forward);color:#fff;border-color:var(--forward)}
table{border-collapse:collapse;width:100%;font-size:14px}th{color:var(--muted);font-weight:500;text-align:left}th,td{padding:5px 10px 5px 0;border-top:1px solid var(--line);vertical-align:top}
tr:first-child th{border-top:0}td.n,th.n{text-align:right;white-space:nowrap}.why{min-width:260px}tr.taken td{font-weight:600}
input[type=range]{width:min(320px,60%);vertical-align:middle}
)CSS";

// Without it the page shows the same, but groups cannot be chosen and the timeline not zoomed.
constexpr char kScript[] = R"JS(
(function(){
var layout=document.getElementById('layout'),text=document.getElementById('which'),buttons=[].slice.call(document.querySelectorAll('button[data-axis]'));
var axis=START;
function at(rank){var c=[],i;for(i=MESH.length-1;i>=0;i--){c[i]=rank%MESH[i][1];rank=Math.floor(rank/MESH[i][1])}return c}
function group(c,a){var g=0,i;for(i=0;i<c.length;i++)if(i!==a)g=g*MESH[i][1]+c[i];return g}
function gpus(){return [].slice.call(layout.querySelectorAll('.gpu'))}
function colour(){gpus().forEach(function(g){var r=g.querySelector('rect');r.setAttribute('class','device g'+group(at(+g.dataset.rank),axis)%8);g.classList.remove('peer')});
layout.classList.remove('dim');buttons.forEach(function(b){b.setAttribute('aria-pressed',+b.dataset.axis===axis)});text.textContent=buttons.length?'Devices of one colour are one group of '+MESH[axis][0]+'. Choose a device to see its group.':''}
buttons.forEach(function(b){b.onclick=function(){axis=+b.dataset.axis;colour()}});
layout.onclick=function(e){var g=e.target.closest('.gpu');colour();if(!g)return;var rank=+g.dataset.rank,mine=group(at(rank),axis),size=MESH[axis][1];
gpus().forEach(function(o){if(group(at(+o.dataset.rank),axis)===mine)o.classList.add('peer')});
text.textContent='Rank '+rank+' is '+MESH.map(function(m,i){return m[0]+' '+at(rank)[i]+' of '+m[1]}).join(', ')+'. Its group of '+MESH[axis][0]+' has '+size+' ranks, outlined.'};
colour();
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

std::string Tile(const std::string& value, const std::string& label) {
  return absl::StrCat("<div class=\"tile\"><b>", Escaped(value), "</b><span>", Escaped(label), "</span></div>\n");
}

std::string Section(const std::string& title, const std::string& body) {
  return absl::StrCat("<section><h2>", Escaped(title), "</h2>\n", body, "</section>\n");
}

std::string Key(const std::string& css, const std::string& text) {
  return absl::StrCat("<span class=\"key\" style=\"background:var(--", css, ")\"></span>", Escaped(text));
}

std::string Row(const char* tag, const std::vector<std::string>& cells, size_t first_number, size_t last_number) {
  std::string row;
  for (size_t i = 0; i < cells.size(); ++i) {
    const bool number = i >= first_number && i <= last_number;
    absl::StrAppend(&row, "<", tag,
                    number                  ? " class=\"n\">"
                    : i + 1 == cells.size() ? " class=\"why\">"
                                            : ">",
                    Escaped(cells[i]), "</", tag, ">");
  }
  return row;
}

std::string Tiles(const ReportFacts& facts) {
  const Finalist& best = *facts.best;
  const Plan& plan = best.candidate.plan;
  const double seconds = best.simulation.step_seconds;
  const double tokens = static_cast<double>(plan.global_batch() * plan.seq_len);
  const double peak = best.cluster.machine.CountedPeak(plan.compute_dtype);
  std::string tiles = "<div class=\"tiles\">\n";
  tiles += Tile(SecondsText(seconds), "a step");
  tiles += Tile(CountText(tokens / seconds), "tokens a second");
  if (peak > 0)
    tiles += Tile(absl::StrFormat("%.1f %%", 100 * best.candidate.model_flops /
                                                 (seconds * peak * static_cast<double>(plan.num_ranks()))),
                  "of the peak (MFU)");
  tiles += Tile(
      BytesText(static_cast<double>(plan.total_bytes)),
      best.cluster.machine.memory_bytes > 0
          ? absl::StrCat("of ", BytesText(best.cluster.machine.memory_bytes), " on each ", DeviceWord(best.cluster))
          : absl::StrCat("on each ", DeviceWord(best.cluster)));
  tiles += Tile(DurationText(seconds * static_cast<double>(facts.max_steps)),
                absl::StrCat("for ", WholeText(facts.max_steps), " steps"));
  return tiles + "</div>\n";
}

std::string LayoutBody(const Finalist& best) {
  const Mesh& mesh = best.candidate.plan.mesh;
  std::string buttons, words;
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (mesh.axes[axis].size == 1) continue;
    absl::StrAppend(&buttons, "<button data-axis=\"", axis, "\" aria-pressed=\"false\">", mesh.axes[axis].name, " = ",
                    mesh.axes[axis].size, "</button>");
    absl::StrAppend(&words, "<p>", Escaped(AxisInWords(best, static_cast<int>(axis))), "</p>\n");
  }
  if (buttons.empty()) words = "<p>One device does all of it.</p>\n";
  return absl::StrCat("<div>", buttons, "</div>\n<div class=\"wide\" id=\"layout\">", LayoutSvg(best),
                      "</div>\n<p class=\"note\" id=\"which\"></p>\n", words);
}

std::string Communication(const Finalist& best) {
  const int stage = best.slowest_stage();
  const std::vector<CommunicationRow> rows = CommunicationOf(best, stage);
  if (rows.empty()) return "<p class=\"note\">Nothing is communicated.</p>\n";
  std::string table = absl::StrCat(
      "<div class=\"wide\"><table><tr>",
      Row("th", {"collective", "of", "over", "times", "sent by a rank", "seconds", "hidden"}, 3, 6), "</tr>\n");
  for (const CommunicationRow& row : rows) {
    if (row.seconds < 1e-4 * best.simulation.step_seconds) continue;
    absl::StrAppend(&table, "<tr>",
                    Row("td",
                        {row.op, std::string(Name(row.cargo)), row.axes, WholeText(row.count),
                         BytesText(static_cast<double>(row.sent_bytes)), SecondsText(row.seconds),
                         absl::StrFormat("%.0f %%", 100 * (1 - row.exposed / std::max(row.seconds, 1e-12)))},
                        3, 6),
                    "</tr>\n");
  }
  return table + "</table></div>\n";
}

std::string Candidates(const ReportFacts& facts) {
  const Finalist& best = *facts.best;
  const Planned& planned = *facts.planned;
  std::string table = absl::StrCat(
      "<div class=\"wide\"><table><tr>",
      Row("th", {"layout", "how", "samples", "a step", "tokens/s", "exposed", "memory", "why not"}, 2, 6), "</tr>\n");
  size_t shown = 0;
  const auto row = [&](const std::string& mesh, const Layout& l, double seconds, double exposed, double bytes,
                       const std::string& why) {
    const double tokens = static_cast<double>(l.global_batch() * best.candidate.plan.seq_len);
    absl::StrAppend(&table, shown == 0 ? "<tr class=\"taken\">" : "<tr>",
                    Row("td",
                        {mesh, HowText(l), absl::StrCat(l.micro_batch, " x ", l.accumulation), SecondsText(seconds),
                         CountText(tokens / seconds), SecondsText(exposed), BytesText(bytes), why},
                        2, 6),
                    "</tr>\n");
    ++shown;
  };
  for (const Candidate& c : planned.candidates) {
    row(c.plan.mesh.ToString(), c.layout, c.plan.step_seconds, c.times.exposed_seconds,
        static_cast<double>(c.plan.total_bytes),
        shown == 0 ? "this one is taken"
                   : WhyLost(best.candidate, c, static_cast<int64_t>(best.cluster.machine.memory_bytes)));
  }
  const size_t candidates = shown;
  for (const Loser& loser : planned.losers) {
    if (shown == candidates + kMaxRows) break;
    const auto& [layout, step, memory] = loser.scored;
    row(MeshText(layout), layout, step.seconds, step.communication(),
        memory.total() +
            static_cast<double>(IdleBytes(best.cluster.machine) + BufferBytes(best.cluster.machine, layout.mesh())),
        loser.why);
  }
  absl::StrAppend(&table, "</table></div>\n<p class=\"note\">", WholeText(planned.num_meshes), " meshes and ",
                  WholeText(planned.num_layouts), " layouts that could fit were estimated; the first ",
                  candidates == 1 ? "" : absl::StrCat(candidates, " "), "became programs and were simulated.");
  if (const size_t all = planned.candidates.size() + planned.losers.size(); all > shown)
    absl::StrAppend(&table, " ", all - shown, " more meshes are slower still or do not fit.");
  return table + "</p>\n";
}

std::string MachineTable(const Finalist& best) {
  std::string table = "<div class=\"wide\"><table>\n";
  for (const MachineConstant& constant : MachineConstants()) {
    absl::StrAppend(
        &table, "<tr>",
        Row("td", {constant.name, absl::StrFormat("%.4g", best.cluster.machine.*constant.value), constant.unit}, 1, 1),
        "</tr>\n");
  }
  return table + "</table></div>\n";
}

}  // namespace

std::string ReportHtml(const ReportFacts& facts, const OpTable& ops) {
  const Finalist& best = *facts.best;
  const Mesh& mesh = best.candidate.plan.mesh;
  std::string words;
  for (const std::string& paragraph : InWords(best, facts.max_steps))
    absl::StrAppend(&words, "<p>", Escaped(paragraph), "</p>\n");
  const std::string axes = absl::StrJoin(mesh.axes, ",", [](std::string* out, const Mesh::Axis& axis) {
    absl::StrAppend(out, "['", axis.name, "',", axis.size, "]");
  });
  int start = 0;
  for (size_t axis = 1; axis < mesh.axes.size(); ++axis) {
    if (mesh.axes[axis].size > mesh.axes[start].size) start = static_cast<int>(axis);
  }
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>",
      Escaped(facts.job), ": plan</title>\n<style>", kStyle, "</style></head>\n<body><main>\n<h1>", Escaped(facts.job),
      "</h1>\n<p class=\"sub\">Planned for ", Escaped(ClusterText(best.cluster)), ". Predicted, not measured.</p>\n",
      Tiles(facts), Section("What the job will do", words), Section("The layout", LayoutBody(best)),
      Section("Memory over a step", absl::StrCat("<div class=\"wide\">", MemorySvg(best), "</div>\n")),
      Section("The timeline of a step",
              absl::StrCat("<p class=\"note\">", Key("forward", "forward"), Key("backward", "backward"),
                           Key("update", "update"), Key("hidden", "communication that computation hides"),
                           Key("exposed", "communication that computation waits for"),
                           "</p>\n<p class=\"note\"><label>zoom <input type=\"range\" id=\"zoom\" min=\"1\" max=\"40\" "
                           "value=\"1\"></label></p>\n"
                           "<div class=\"wide\" id=\"timeline\">",
                           TimelineSvg(best), "</div>\n")),
      Section("Where the time goes",
              absl::StrCat("<div class=\"wide\">", TimeBarSvg(best, ops), "</div>\n", Communication(best))),
      Section("The layouts that were weighed", Candidates(facts)),
      Section("What is assumed of the machine", MachineTable(best)), "</main>\n<script>var MESH=[", axes,
      "],START=", start, ";", kScript, "</script>\n</body></html>\n");
}

}  // namespace tacc::graph
