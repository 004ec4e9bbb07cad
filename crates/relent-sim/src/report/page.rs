//! The HTML page, also readable by screen readers.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::canvas::DrawError;
use super::chart::{Chart, Table};
use super::palette::{Swatch, page_css};
use super::section::{PolicyRuns, Section};
use super::{bars, latency, over_time, raster};
use crate::bound::mean_bound;
use crate::measure::{self, Measure};
use crate::metrics::Metrics;
use crate::ranking::{self, Warning};
use crate::recording::Recording;
use crate::study::{RunResult, verdict};

const CSS: &str = include_str!("style.css");
/// Nothing is loaded: with this policy a browser rejects even a request made by mistake.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

pub(super) fn page(sections: &[Section<'_>]) -> Result<String, DrawError> {
    let mut bodies = Vec::new();
    for (index, section) in sections.iter().enumerate() {
        bodies.push(section_body(section, &format!("s{}", index + 1))?);
    }
    let names: Vec<&str> = sections.iter().map(|section| section.name).collect();
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(CONTENT_SECURITY_POLICY);
                title { "relent simulate: " (names.join(", ")) }
                link rel="icon" href="data:,";
                style { (PreEscaped(page_css())) (PreEscaped(CSS)) }
            }
            body {
                a.skip href="#main" { "Skip to the results" }
                header {
                    p.over { "relent simulate" }
                    h1 { "Retry policies with many clients" }
                    p.lead {
                        "Simulated in virtual time, by the code that decides in production. \
                         The same seeds give the same numbers on every machine."
                    }
                    @if sections.len() > 1 {
                        nav aria-label="Scenarios" {
                            ul { @for (index, name) in names.iter().enumerate() {
                                li { a href={ "#s" (index + 1) } { (name) } }
                            } }
                        }
                    }
                }
                main #main tabindex="-1" {
                    @for body in &bodies { (body) }
                    (glossary(sections))
                }
                footer { p { "Made by relent simulate " (env!("CARGO_PKG_VERSION")) "." } }
            }
        }
    };
    Ok(page.into_string())
}

fn section_body(section: &Section<'_>, id: &str) -> Result<Markup, DrawError> {
    let recorded: Vec<(usize, &PolicyRuns<'_>, &Recording)> = section
        .entries
        .iter()
        .enumerate()
        .filter_map(|(number, entry)| Some((number, entry, entry.recording.ok()?)))
        .collect();
    let first = section.seeds.first().copied().unwrap_or_default();
    Ok(html! {
        section aria-labelledby={ (id) "-h" } id=(id) {
            h2 id={ (id) "-h" } { (section.name) }
            @if !section.scenario.description.is_empty() {
                p.lead { (section.scenario.description) }
            }
            p.note { (seeds(section.seeds)) }
            (verdicts(section))
            (warnings(section))
            (numbers(section, id))
            (bars(section, id)?)
            @if recorded.is_empty() {
                p { "Every run was given up: there is nothing to draw." }
            } @else {
                @if section.is_herd() { (rasters(section, id)?) }
                (over_time(section, &recorded, id)?)
                (latencies(&recorded, id)?)
                p.note { "Charts over time and of latencies show the run with seed " (first) "." }
            }
            (parameters(section))
        }
    })
}

fn seeds(seeds: &[u64]) -> String {
    match seeds {
        [] => String::new(),
        [only] => format!("One run of each policy, with seed {only}."),
        [first, ..] => format!(
            "{} runs of each policy, with the seeds from {first}: means, with 95 % confidence \
             intervals. Where only some of the runs recover, the bars have a circle for each run \
             instead.",
            seeds.len()
        ),
    }
}

/// A sample of a line or a mark.
fn sample(swatch: Swatch) -> Markup {
    let path = match swatch {
        Swatch::Mark | Swatch::Done => "M140 -20v120",
        _ => "M5 40h270",
    };
    html! {
        svg.sample viewBox="0 0 280 80" aria-hidden="true" {
            path class=(swatch.line_class()) d=(path) {}
        }
    }
}

fn verdicts(section: &Section<'_>) -> Markup {
    html! {
        ul.verdicts {
            @for (number, entry) in section.entries.iter().enumerate() {
                li {
                    (sample(Swatch::Policy(number)))
                    strong { (entry.name) } ": " (verdict(section.scenario, entry.runs)) "."
                }
            }
        }
    }
}

/// The warnings, if there are runs of no retries to compare with.
fn warnings(section: &Section<'_>) -> Markup {
    let off = section.off.unwrap_or_default();
    let warnings = section.entries.iter().flat_map(|entry| {
        let found = ranking::warnings(section.scenario, entry.runs, off);
        found.into_iter().map(|warning| (entry.name, warning))
    });
    let warnings: Vec<(&str, Warning)> = match section.off {
        Some(_) => warnings.collect(),
        None => Vec::new(),
    };
    html! {
        @if !warnings.is_empty() {
            ul.warnings {
                @for (name, warning) in &warnings {
                    li { "Warning: " strong { (name) } " " (warning) "." }
                }
            }
        }
    }
}

fn ended<'a>(entry: &PolicyRuns<'a>) -> Vec<&'a Metrics> {
    entry.runs.iter().flatten().collect()
}

/// The numbers of all policies, the best first, below the bound.
fn numbers(section: &Section<'_>, id: &str) -> Markup {
    let runs: Vec<Vec<RunResult>> = section
        .entries
        .iter()
        .map(|entry| entry.runs.to_vec())
        .collect();
    let ranked = ranking::best_first(&runs).into_iter();
    let ranked: Vec<&PolicyRuns<'_>> = ranked
        .filter_map(|index| section.entries.get(index))
        .collect();
    let bound = mean_bound(section.scenario, section.seeds);
    let outage = section.scenario.recovery_begins().is_some();
    let measures = shown(std::slice::from_ref(section));
    html! {
        h3 id={ (id) "-n" } { "Numbers" }
        p.note {
            "The best first."
            @match bound {
                Ok(_) => { " The bound is the highest possible goodput." }
                Err(why) => { " There is no bound: " (why) "." }
            }
        }
        div.scroll tabindex="0" role="region" aria-labelledby={ (id) "-n" } {
            table {
                thead { tr {
                    th scope="col" { "policy" }
                    @for measure in &measures {
                        th scope="col" { (measure.head()) }
                    }
                } }
                tbody {
                    @if let Ok(most) = bound {
                        tr {
                            th scope="row" { "bound" }
                            @for measure in &measures {
                                td { @if measure.name == measure::GOODPUT { (format!("{most:.4}")) } }
                            }
                        }
                    }
                    @for entry in &ranked {
                        tr {
                            th scope="row" { (entry.name) }
                            @for measure in &measures {
                                td { (measure.cell(&ended(entry), outage)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The numbers that any of these scenarios has.
fn shown(sections: &[Section<'_>]) -> Vec<&'static Measure> {
    let entries = sections.iter().flat_map(|section| &section.entries);
    let runs: Vec<Vec<&Metrics>> = entries.map(ended).collect();
    measure::shown(&runs)
}

/// Explains the column heads of the tables, once.
fn glossary(sections: &[Section<'_>]) -> Markup {
    html! {
        section aria-labelledby="words" {
            h2 #words { "What the numbers mean" }
            dl { @for measure in shown(sections) {
                dt { (measure.head()) }
                dd { (measure.meaning) }
            } }
        }
    }
}

/// A chart in its box, with its numbers below.
fn figure(chart: &Chart, id: &str) -> Markup {
    html! {
        figure {
            figcaption { (chart.title) }
            div.scroll tabindex="0" role="region" aria-label={ "Chart: " (chart.title) } {
                (PreEscaped(chart.inline(id)))
            }
            (data(&chart.table, &chart.title))
        }
    }
}

fn data(table: &Table, title: &str) -> Markup {
    html! {
        details {
            summary { "Data" span.hidden { " of " (title) } }
            div.scroll.tall tabindex="0" role="region" aria-label={ "Data: " (title) } {
                table {
                    thead { tr { @for head in &table.heads { th scope="col" { (head) } } } }
                    tbody { @for row in &table.rows { tr {
                        @for (column, cell) in row.iter().enumerate() {
                            @if column == 0 { th scope="row" { (cell) } }
                            @else { td { (cell) } }
                        }
                    } } }
                }
            }
        }
    }
}

/// Explains the lines of the charts below.
fn legend(lines: &[(Swatch, &str)]) -> Markup {
    html! {
        ul.legend { @for (swatch, label) in lines { li { (sample(*swatch)) (label) } } }
    }
}

fn bars(section: &Section<'_>, id: &str) -> Result<Markup, DrawError> {
    let rows: Vec<(usize, &str, Vec<&Metrics>)> = section
        .entries
        .iter()
        .enumerate()
        .map(|(number, entry)| (number, entry.name, ended(entry)))
        .filter(|(_, _, runs)| !runs.is_empty())
        .collect();
    if rows.is_empty() {
        return Ok(html! {});
    }
    let [goodput, amplification, ..] = &measure::ALL;
    let outage = section.scenario.recovery_begins().is_some();
    let title = "Goodput: the share that succeeded (log scale of the share that did not)";
    let goodput = bars::chart(title, goodput, &rows, outage)?;
    let title = "Amplification: attempts per success";
    let amplification = bars::chart(title, amplification, &rows, outage)?;
    Ok(html! {
        h3 { "Goodput and amplification" }
        div.grid {
            (figure(&goodput, &format!("{id}-g")))
            (figure(&amplification, &format!("{id}-a")))
        }
    })
}

fn over_time(
    section: &Section<'_>,
    recorded: &[(usize, &PolicyRuns<'_>, &Recording)],
    id: &str,
) -> Result<Markup, DrawError> {
    let runs: Vec<&Recording> = recorded.iter().map(|(_, _, run)| *run).collect();
    let scale = over_time::Scale::of(section.scenario, &runs);
    let mut charts = Vec::new();
    for (number, entry, run) in recorded {
        let chart = over_time::chart(entry.name, section.scenario, run, &scale)?;
        charts.push(figure(&chart, &format!("{id}-o{number}")));
    }
    let mut lines = over_time::LINES.to_vec();
    if let Some(what) = scale.limit_line_name() {
        lines.push((Swatch::Capacity, what));
    }
    Ok(html! {
        h3 { "Over time" }
        (legend(&lines))
        div.grid { @for chart in &charts { (chart) } }
    })
}

fn latencies(
    recorded: &[(usize, &PolicyRuns<'_>, &Recording)],
    id: &str,
) -> Result<Markup, DrawError> {
    let lines: Vec<(usize, &str, &Recording)> = recorded
        .iter()
        .map(|(number, entry, run)| (*number, entry.name, *run))
        .collect();
    let keys: Vec<(Swatch, &str)> = lines
        .iter()
        .map(|(number, name, _)| (Swatch::Policy(*number), *name))
        .collect();
    if lines.iter().all(|(_, _, run)| run.metrics.successes == 0) {
        return Ok(html! {
            h3 { "Latency" }
            p { "Nothing succeeded." }
        });
    }
    let chart = latency::chart(&lines)?;
    Ok(html! {
        h3 { "Latency" }
        (legend(&keys))
        (figure(&chart, &format!("{id}-l")))
    })
}

/// The attempts of a herd, for every policy with and without its jitter.
fn rasters(section: &Section<'_>, id: &str) -> Result<Markup, DrawError> {
    let mut pairs = Vec::new();
    for (number, entry) in section.entries.iter().enumerate() {
        let Ok(run) = entry.recording else { continue };
        let twin = entry.without_jitter;
        let both: Vec<&Recording> = [run].into_iter().chain(twin.and_then(Result::ok)).collect();
        let end = raster::shown(&both);
        let plain = format!("{}, without its jitter", entry.name);
        let mut pair = Vec::new();
        for ((run, title), which) in both.iter().zip([entry.name, &plain]).zip(["j", "n"]) {
            let chart = raster::chart(title, run, end)?;
            pair.push(figure(&chart, &format!("{id}-r{number}{which}")));
        }
        if let Some(Err(error)) = twin {
            pair.push(html! { p { (plain) ": " (error) "." } });
        }
        pairs.push(pair);
    }
    Ok(html! {
        h3 { "The thundering herd" }
        p { "Every row is a client, every mark one of its attempts. Synchronized clients form columns; \
             jitter spreads them." }
        (legend(&raster::MARKS))
        @for pair in &pairs {
            div.grid { @for chart in pair { (chart) } }
        }
    })
}

fn parameters(section: &Section<'_>) -> Markup {
    let file = |title: &str, text: &str| {
        html! {
            details {
                summary { (title) }
                div.scroll tabindex="0" role="region" aria-label=(title) { pre { code { (text) } } }
            }
        }
    };
    html! {
        h3 { "Parameters" }
        @if !section.changes.is_empty() {
            p { "Changed in the scenario: " @for (index, (key, value)) in section.changes.iter().enumerate() {
                @if index > 0 { ", " } code { (key) " = " (value) }
            } "." }
        }
        (file(&format!("Scenario {}", section.name), section.text))
        @for entry in &section.entries {
            (file(&format!("Policy {}", entry.name), entry.text))
        }
    }
}
