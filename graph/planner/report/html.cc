#include "graph/planner/report/html.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "graph/planner/prediction_range.h"
#include "graph/planner/report/charts.h"
#include "graph/planner/report/words.h"
#include "page/page.h"
#include "page/svg.h"

namespace tacc::graph {
namespace {

using svg::Escaped;

// Meshes that lost by estimate in the table; the others are worse.
constexpr size_t kMaxRows = 24;

// Without it the page shows the same, but groups cannot be chosen.
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
})();
)JS";

std::string Tile(const std::string& value, const std::string& label) {
  return absl::StrCat("<div class=\"tile\"><b>", Escaped(value), "</b><span>", Escaped(label), "</span></div>\n");
}

std::string Tiles(const ReportFacts& facts) {
  const Finalist& best = *facts.best;
  const Plan& plan = best.candidate.plan;
  const double seconds = best.simulation.step_seconds;
  const double tokens = static_cast<double>(plan.global_batch() * plan.seq_len);
  const double peak = best.cluster.machine.CountedPeak(plan.compute_dtype);
  std::string tiles = "<div class=\"tiles\">\n";
  const PredictionRange range = StepRange(best.cluster.machine);
  tiles += Tile(SecondsText(seconds),
                absl::StrCat("a step (", StepRangeText(best.cluster.machine, seconds), "), simulated"));
  tiles += Tile(
      CountText(tokens / seconds),
      absl::StrCat("tokens a second (",
                   RangeText(CountText(tokens / seconds / range.high), CountText(tokens / seconds / range.low)), ")"));
  if (peak > 0) {
    const double mfu = 100 * best.candidate.model_flops / (seconds * peak * static_cast<double>(plan.num_ranks()));
    tiles += Tile(PercentText(mfu),
                  absl::StrCat("of the peak (MFU; ",
                               RangeText(PercentText(mfu / range.high), PercentText(mfu / range.low)), ")"));
  }
  tiles += Tile(
      BytesText(static_cast<double>(plan.total_bytes)),
      best.cluster.machine.memory_bytes > 0
          ? absl::StrCat("of ", BytesText(best.cluster.machine.memory_bytes), " on each ", DeviceWord(best.cluster))
          : absl::StrCat("on each ", DeviceWord(best.cluster)));
  tiles += Tile(DurationText(seconds * static_cast<double>(facts.max_steps)),
                absl::StrCat("for ", WholeText(facts.max_steps), " steps (",
                             RangeText(DurationText(range.low * seconds * static_cast<double>(facts.max_steps)),
                                       DurationText(range.high * seconds * static_cast<double>(facts.max_steps))),
                             ")"));
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
      TableRow("th", {"collective", "of", "over", "times", "sent by a rank", "seconds", "hidden"}, 3, 6), "</tr>\n");
  for (const CommunicationRow& row : rows) {
    if (row.seconds < 1e-4 * best.simulation.step_seconds) continue;
    absl::StrAppend(&table, "<tr>",
                    TableRow("td",
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
      TableRow("th", {"layout", "how", "by", "samples", "a step", "tokens/s", "exposed", "memory", "why not"}, 3, 7),
      "</tr>\n");
  size_t shown = 0;
  const auto row = [&](const std::string& mesh, const Layout& l, bool estimated, double seconds, double exposed,
                       double bytes, const std::string& why) {
    const char* about = estimated ? "~" : "";
    const double tokens = static_cast<double>(l.global_batch() * best.candidate.plan.seq_len);
    absl::StrAppend(
        &table, shown == 0 ? "<tr class=\"taken\">" : "<tr>",
        TableRow("td",
                 {mesh, HowText(l), estimated ? "estimate" : "simulation",
                  absl::StrCat(l.micro_batch, " x ", l.accumulation), about + SecondsText(seconds),
                  about + CountText(tokens / seconds), about + SecondsText(exposed), about + BytesText(bytes), why},
                 3, 7),
        "</tr>\n");
    ++shown;
  };
  for (const Candidate& c : planned.candidates) {
    row(c.plan.mesh.ToString(), c.layout, false, c.plan.step_seconds, c.times.exposed_seconds,
        static_cast<double>(c.plan.total_bytes),
        shown == 0 ? "this one is taken"
                   : WhyLost(best.candidate, c, static_cast<int64_t>(best.cluster.machine.memory_bytes)));
  }
  const size_t candidates = shown;
  for (const Loser& loser : planned.losers) {
    if (shown == candidates + kMaxRows) break;
    const auto& [layout, step, memory] = loser.scored;
    row(MeshText(layout), layout, true, step.seconds, step.communication(),
        memory.total() +
            static_cast<double>(IdleBytes(best.cluster.machine) + BufferBytes(best.cluster.machine, layout.mesh())),
        loser.why);
  }
  absl::StrAppend(&table, "</table></div>\n<p class=\"note\">", WholeText(planned.num_meshes), " meshes and ",
                  WholeText(planned.num_layouts), " layouts that could fit were estimated; the first ",
                  candidates == 1 ? "" : absl::StrCat(candidates, " "),
                  "became programs and were simulated. Rows with ~ are estimates, and are compared with the lowest "
                  "estimate, not with the simulated step of what is taken: that differs from its own estimate.");
  if (const size_t all = planned.candidates.size() + planned.losers.size(); all > shown)
    absl::StrAppend(&table, " ", all - shown, " more meshes are slower still or do not fit.");
  return table + "</p>\n";
}

std::string MachineTable(const Finalist& best) {
  std::string table = "<div class=\"wide\"><table>\n";
  for (const MachineConstant& constant : MachineConstants()) {
    absl::StrAppend(
        &table, "<tr>",
        TableRow("td", {constant.name, absl::StrFormat("%.4g", best.cluster.machine.*constant.value), constant.unit}, 1,
                 1),
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
  const std::string body = absl::StrCat(
      Tiles(facts), Section("What the job will do", words), Section("The layout", LayoutBody(best)),
      Section("Memory over a step", absl::StrCat("<div class=\"wide\">", MemorySvg(best), "</div>\n")),
      Section("The timeline of a step",
              absl::StrCat("<p class=\"note\">", Key("forward", "forward"), Key("backward", "backward"),
                           Key("update", "update"), Key("hidden", "communication that computation hides"),
                           Key("exposed", "communication that computation waits for"), "</p>\n",
                           ZoomedTimeline(PlannedTimelineSvg(best)))),
      Section("Where the time goes",
              absl::StrCat("<div class=\"wide\">", TimeBarSvg(best, ops), "</div>\n", Communication(best))),
      Section("The layouts that were weighed", Candidates(facts)),
      Section("What is assumed of the machine", MachineTable(best)));
  return Page(
      {absl::StrCat(facts.job, ": plan"), facts.job,
       absl::StrCat("Planned for ", ClusterText(best.cluster),
                    ". Predicted, not measured: step and timeline are simulated, bytes are those of its programs.")},
      body, absl::StrCat("var MESH=[", axes, "],START=", start, ";", kScript));
}

}  // namespace tacc::graph
