use std::sync::OnceLock;

use relent_core::Policy;

use super::*;
use crate::recording::Recording;
use crate::scenario::Scenario;
use crate::study::RunResult;
use crate::study::run_all;
use crate::too_many_events::TooManyEvents;
use crate::{record, scenarios};

const SEEDS: [u64; 2] = [1, 2];
const HOSTILE_TEXT: &str = "<script>alert('\"&')</script>";

struct Study {
    name: &'static str,
    text: &'static str,
    scenario: Scenario,
    runs: Vec<Vec<RunResult>>,
    recordings: Vec<Recording>,
    plain: Option<Recording>,
    changes: Vec<(String, String)>,
}

fn study(name: &'static str, changes: &[(&str, &str)]) -> Study {
    let text = scenarios::get(name).unwrap().text;
    let scenario = Scenario::parse_with(text, changes).unwrap();
    // The circuit breaker spreads its probes itself; synchronization is most visible with few attempts.
    let plain = || {
        let builder = Policy::STANDARD.clone().into_builder();
        builder.no_circuit_breaker().max_retries(2)
    };
    let off = plain().retries_off(true).build().unwrap();
    let policies = [off, plain().build().unwrap()];
    let all: Vec<&Policy> = policies.iter().collect();
    let runs = run_all(&scenario, &all, &SEEDS, 2, &|| ());
    let recordings = all
        .iter()
        .map(|policy| record(&scenario, policy, 1).unwrap());
    let recordings = recordings.collect();
    let plain = without_jitter(&policies[1]).filter(|_| name == "herd");
    let plain = plain.map(|plain| record(&scenario, &plain, 1).unwrap());
    let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    Study {
        name,
        text,
        scenario,
        runs,
        recordings,
        plain,
        changes: changes.iter().map(own).collect(),
    }
}

fn outage() -> &'static Study {
    static STUDY: OnceLock<Study> = OnceLock::new();
    STUDY.get_or_init(|| {
        // A single value of an outage has no key of its own: the whole list is changed.
        let outages = "[{ at = \"20s\", for = \"10s\", effect = \"blackout\" }]";
        let short = ("clients.arrivals.poisson.for", "100s");
        study("blackout", &[("outages", outages), short])
    })
}

fn herd() -> &'static Study {
    static STUDY: OnceLock<Study> = OnceLock::new();
    STUDY.get_or_init(|| study("herd", &[]))
}

impl Study {
    fn section<'a>(&'a self, names: &[&'a str]) -> Section<'a> {
        let entries = self.runs.iter().zip(&self.recordings).zip(names);
        Section {
            name: self.name,
            scenario: &self.scenario,
            text: self.text,
            changes: &self.changes,
            seeds: &SEEDS,
            off: self.runs.first().map(Vec::as_slice),
            entries: entries
                .map(|((runs, recording), name)| PolicyRuns {
                    name,
                    text: "max_retries = 5 # <as TOML>",
                    runs,
                    recording: Ok(recording),
                    without_jitter: self.plain.as_ref().map(Ok).filter(|_| *name != "off"),
                })
                .collect(),
        }
    }
}

fn both() -> String {
    let names = ["off", "standard"];
    html(&[outage().section(&names), herd().section(&names)]).unwrap()
}

#[test]
fn the_report_page_loads_no_resource_and_has_no_script() {
    let page = both();
    for part in [
        "http://", "https://", "src=", "<script", "@import", "url(", "<iframe", " onload",
    ] {
        assert!(!page.contains(part), "{part}");
    }
    let targets = page.split("href=\"").skip(1);
    for target in targets {
        assert!(
            target.starts_with('#') || target.starts_with("data:,\""),
            "{}",
            &target[..40]
        );
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn the_report_has_text_numbers_and_charts_for_every_policy() {
    let page = both();
    let count = |part: &str| page.matches(part).count();
    // For the outage: two bars, two panels, a curve. For the herd: the same, a raster without retries, and two with.
    assert_eq!(count("role=\"img\""), 5 + 5 + 3);
    assert_eq!(count("<desc "), 13);
    assert_eq!(count("<figcaption>off</figcaption>"), 3);
    assert_eq!(count("<figcaption>standard</figcaption>"), 3);
    assert_eq!(
        count("<figcaption>standard, without its jitter</figcaption>"),
        1
    );
    assert_eq!(
        count("<th scope=\"row\">standard</th>"),
        2 + 2 * 3,
        "numbers, bars, curves"
    );
    assert_eq!(count("<strong>standard</strong>: "), 2);
    assert!(page.contains("clients.arrivals.poisson.for = 100s"));
    assert!(page.contains("&lt;as TOML&gt;"));
    assert!(page.contains("capacity 1\u{202f}000"), "the capacity line");
    assert!(page.contains(">blackout</text>"), "the outage");
}

#[test]
fn ids_of_the_report_are_unique_and_every_reference_has_a_target() {
    let page = both();
    let of = |key: &str| -> Vec<String> {
        let values = page.split(key).skip(1);
        values
            .flat_map(|rest| rest.split('"').next().unwrap().split(' '))
            .map(str::to_owned)
            .collect()
    };
    let mut ids = of(" id=\"");
    ids.sort_unstable();
    let count = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), count);
    let links = of(" href=\"#").into_iter();
    for target in links.chain(of(" aria-labelledby=\"")) {
        assert!(ids.binary_search(&target).is_ok(), "{target}");
    }
}

#[test]
fn the_report_escapes_all_input_texts() {
    let mut section = outage().section(&[HOSTILE_TEXT, "standard"]);
    section.name = HOSTILE_TEXT;
    section.text = HOSTILE_TEXT;
    section.entries[0].text = HOSTILE_TEXT;
    let changes = vec![(HOSTILE_TEXT.to_owned(), HOSTILE_TEXT.to_owned())];
    section.changes = &changes;
    let mut scenario = section.scenario.clone();
    scenario.description = HOSTILE_TEXT.to_owned();
    section.scenario = &scenario;
    let page = html(&[section.clone(), section.clone()]).unwrap();
    let svg = svg(&section).unwrap();
    for made in [page, svg] {
        assert!(!made.contains("<script"), "{made}");
        assert!(made.contains("&lt;script&gt;"));
    }
}

#[test]
fn reports_of_the_same_runs_are_identical() {
    assert_eq!(both(), both());
    let section = herd().section(&["off", "standard"]);
    assert_eq!(svg(&section), svg(&section));
}

#[test]
fn the_raster_shows_that_jitter_prevents_synchronization() {
    let section = herd().section(&["off", "standard"]);
    let entry = &section.entries[1];
    let (with, without) = (
        entry.recording.unwrap(),
        entry.without_jitter.unwrap().unwrap(),
    );
    let end = raster::shown(&[with, without]);
    let share = |recording: &Recording| {
        let words = raster::describe(recording, end);
        let (_, rest) = words.split_once("shown has ").unwrap();
        rest.split(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert!(
        share(without) >= 3.0 * share(with),
        "{} {}",
        share(without),
        share(with)
    );
}

#[test]
fn a_picture_loads_no_resource_and_uses_a_generic_font() {
    for section in [outage(), herd()].map(|study| study.section(&["off", "standard"])) {
        let picture = svg(&section).unwrap();
        for part in ["@font-face", "url(", "@import", "href", "<script", "var("] {
            assert!(!picture.contains(part), "{part}");
        }
        let families = picture.split("font-family").skip(1);
        let families: Vec<&str> = families.filter_map(|rest| rest.split('"').nth(1)).collect();
        assert_eq!(families, ["system-ui, sans-serif"]);
    }
}

#[test]
fn a_picture_of_two_policies_has_two_panels_in_a_row() {
    let picture = svg(&outage().section(&["off", "standard"])).unwrap();
    let head = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"996\" height=\"330\" ";
    assert!(picture.starts_with(head), "{}", &picture[..120]);
    for name in ["off", "standard"] {
        assert!(picture.contains(&format!(">{name}</text>")), "{name}");
    }
}

#[test]
fn a_message_replaces_the_charts_of_runs_that_were_given_up() {
    let mut section = outage().section(&["off", "standard"]);
    let given_up = [Err(TooManyEvents), Err(TooManyEvents)];
    for entry in &mut section.entries {
        entry.recording = Err(TooManyEvents);
        entry.runs = &given_up;
    }
    let page = html(&[section.clone()]).unwrap();
    assert!(page.contains("given up after"));
    assert!(page.contains("nothing to draw"));
    assert!(
        svg(&section)
            .unwrap()
            .contains("given up: too many attempts")
    );
}

#[test]
fn a_report_without_success_has_no_latencies_but_everything_else() {
    let study = study("random-failures", &[("service.failures", "1")]);
    let page = html(&[study.section(&["off", "standard"])]).unwrap();
    assert!(page.contains("Nothing succeeded."));
    assert!(page.contains(">no success</text>"));
    assert_eq!(page.matches("role=\"img\"").count(), 4);
}
