//! Tests of `relent simulate run` with `--report` and `--plot`: the files, and their rendering in a browser.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::browser;
use crate::support::{HANG_TIMEOUT, Ran, relent, run};

/// A short outage, with a policy that recovers and one that does not.
fn blackout(folder: &Path) -> String {
    let file = folder.join("outage.toml");
    let text = r#"
        description = "ten seconds of <b>nothing</b>"
        clients.arrivals.poisson = { rate = 400, for = "60s" }
        service = { capacity = 500, queue = "500ms", reject_cost = 0.1 }
        outages = [{ at = "15s", for = "10s", effect = "blackout" }]
    "#;
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

fn simulate(args: &[&str]) -> Ran {
    run(&[&["simulate", "run", "--seeds", "2"], args].concat())
}

#[test]
fn a_report_is_one_file_with_every_scenario_and_the_table_is_printed_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let (outage, page) = (blackout(folder.path()), folder.path().join("r.html"));
    let args = [&outage, "herd", "--report", page.to_str().unwrap()];
    let ran = simulate(&args);
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
    assert_eq!(ran.stdout, simulate(&args[..2]).stdout);
    let text = fs::read_to_string(&page).unwrap();
    for part in [
        "<h2 id=\"s1-h\">",
        "<h2 id=\"s2-h\">herd</h2>",
        "standard, without its jitter",
    ] {
        assert!(text.contains(part), "{part}");
    }
    assert!(text.contains("max_retries"), "the policies as TOML");
    assert!(text.contains("&lt;b&gt;nothing") && !text.contains("<b>nothing"));
    assert_eq!(simulate(&args).status, 0, "again, over the old one");
    assert_eq!(
        fs::read_to_string(&page).unwrap(),
        text,
        "the same seeds, the same file"
    );
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        2,
        "nothing is left behind"
    );
}

#[test]
fn a_report_shows_the_bound_and_policies_worse_than_off() {
    let folder = tempfile::tempdir().unwrap();
    let (outage, page) = (blackout(folder.path()), folder.path().join("r.html"));
    // The comparison with `off` is also shown if `off` is not given.
    let args = [&outage, "--policy", "cenkalti", "--report"];
    let ran = simulate(&[&args[..], &[page.to_str().unwrap()]].concat());
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("<th scope=\"row\">bound</th><td>1.0000</td>"));
    let warnings = ran
        .stdout
        .lines()
        .filter(|line| line.starts_with("warning:"));
    let warnings: Vec<&str> = warnings.collect();
    assert!(!warnings.is_empty(), "{}", ran.stdout);
    for warning in warnings {
        let words = warning.split_once("cenkalti").unwrap().1;
        assert!(text.contains(words), "{words}");
    }
}

#[test]
fn an_interrupted_simulation_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("r.html");
    let args = [
        "simulate", "run", "herd", "--json", "--seeds", "10000", "--report",
    ];
    let mut child = relent(&[&args[..], &[page.to_str().unwrap()]].concat())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The program has started, and runs for minutes.
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let status = format!("/proc/{pid}/task");
    let busy = || fs::read_dir(&status).is_ok_and(|tasks| tasks.count() > 1);
    let begun = Instant::now();
    while !busy() {
        assert!(begun.elapsed() < HANG_TIMEOUT, "it does nothing");
        thread::yield_now();
    }
    kill(pid, Signal::SIGTERM).unwrap();
    assert!(!child.wait().unwrap().success());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_standalone_picture_renders_in_both_themes() {
    let Some(mut browser) = browser::open() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (outage, picture) = (blackout(folder.path()), folder.path().join("p.SVG"));
    let file = picture.to_str().unwrap();
    let ran = simulate(&[&outage, "--policy", "off,standard", "--plot", file]);
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
    let url = format!("file://{file}");
    for (dark, paper, line) in [
        (false, "rgb(255, 255, 255)", "rgb(8, 61, 119)"),
        (true, "rgb(21, 24, 29)", "rgb(179, 218, 255)"),
    ] {
        browser.load(&url, 1280, dark);
        let root = browser.value("document.documentElement.tagName + ' ' + document.querySelectorAll('parsererror').length");
        assert_eq!(root, json!("svg 0"), "it is well-formed");
        let title = browser.value("document.querySelector('text').textContent");
        let title = title.as_str().unwrap();
        assert!(title.ends_with("<b>nothing</b>"), "{title}");
        let seen = browser.value("getComputedStyle(document.querySelector('.paper')).fill");
        assert_eq!(seen, json!(paper), "dark {dark}");
        let seen = browser.value("getComputedStyle(document.querySelector('.s7')).stroke");
        assert_eq!(seen, json!(line), "dark {dark}");
        let outside = "[...document.querySelectorAll('text,path')].filter(one => {
            const [inner, box] = [one, document.documentElement].map(e => e.getBoundingClientRect());
            return inner.left < box.left || inner.right > box.right + 1
                || inner.top < box.top || inner.bottom > box.bottom + 1;
        }).map(one => one.textContent)";
        assert_eq!(browser.value(outside), json!([]), "dark {dark}");
        let elsewhere = browser.requests().into_iter().filter(|asked| *asked != url);
        assert_eq!(elsewhere.count(), 0, "{:?}", browser.requests());
    }
}

#[test]
fn an_unwritable_report_is_an_error_before_the_first_run() {
    let folder = tempfile::tempdir().unwrap();
    let there = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (deep, svg) = (there("no/such/r.html"), there("p.svg"));
    for (args, status, part) in [
        (
            vec!["herd", "--plot", "p.PNG"],
            2,
            "ends in .svg, or --report FILE.html",
        ),
        (vec!["herd", "--plot", "p"], 2, "ends in .svg"),
        (
            vec!["herd", "--report", "p.png"],
            2,
            "ends in .html; `relent simulate run --plot FILE.svg`",
        ),
        (
            vec!["herd", "chain", "--plot", &svg],
            2,
            "--plot draws one scenario, not 2",
        ),
        (vec!["--plot", &svg], 2, "name one, or use --report"),
        (vec!["herd", "--report", &svg, "--plot", &svg], 2, "use two"),
        (
            vec!["herd", "--report", &deep],
            1,
            "no/such/r.html: cannot be written",
        ),
        (
            vec!["herd", "--report", "/"],
            1,
            "--report /: cannot be written",
        ),
    ] {
        let ran = run(&[&["simulate", "run"][..], &args].concat());
        assert_eq!(ran.status, status, "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{args:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{args:?}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_report_that_is_replaced_keeps_its_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let (outage, page) = (blackout(folder.path()), folder.path().join("r.html"));
    fs::write(&page, "old").unwrap();
    fs::set_permissions(&page, fs::Permissions::from_mode(0o640)).unwrap();
    let ran = simulate(&[&outage, "--report", page.to_str().unwrap()]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(
        fs::read_to_string(&page)
            .unwrap()
            .starts_with("<!DOCTYPE html>")
    );
    assert_eq!(page.metadata().unwrap().permissions().mode() & 0o777, 0o640);
}

/// JavaScript that returns, for every chart, its box and the boxes of its elements.
const CHARTS: &str = "[...document.querySelectorAll('figure svg[role=img]')].map(chart => {
    const shown = [...chart.querySelectorAll('path,text')];
    const ids = chart.getAttribute('aria-labelledby').split(' ');
    const box = chart.getBoundingClientRect();
    return {
        title: chart.querySelector('title').textContent,
        words: ids.map(id => document.getElementById(id).textContent.length),
        width: box.width,
        height: box.height,
        paths: chart.querySelectorAll('path').length,
        drawn: shown.filter(one => one.getBBox().width + one.getBBox().height > 0).length,
        outside: shown.filter(one => {
            const inner = one.getBoundingClientRect();
            return inner.left < box.left - 2 || inner.right > box.right + 2
                || inner.top < box.top - 2 || inner.bottom > box.bottom + 2;
        }).map(one => one.textContent || one.getAttribute('d').slice(0, 60)),
    };
})";

/// JavaScript that returns texts of one chart that overlap.
const OVERLAPS: &str = "[...document.querySelectorAll('figure svg[role=img]')].flatMap(chart => {
    const texts = [...chart.querySelectorAll('text')].filter(text => text.textContent);
    const boxes = texts.map(text => text.getBoundingClientRect());
    const apart = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1
        || a.bottom <= b.top + 3 || b.bottom <= a.top + 3;
    return boxes.flatMap((one, i) => boxes.slice(i + 1).flatMap((other, j) =>
        apart(one, other) ? [] : [texts[i].textContent + ' / ' + texts[i + 1 + j].textContent]));
})";

#[test]
fn every_chart_renders_on_wide_and_narrow_screens_in_both_themes() {
    let Some(mut browser) = browser::open() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (outage, page) = (blackout(folder.path()), folder.path().join("r.html"));
    let policies = ["--policy", "off,standard,cenkalti", "--report"];
    let args = [
        &[outage.as_str(), "herd"],
        &policies[..],
        &[page.to_str().unwrap()],
    ];
    let ran = simulate(&args.concat());
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let url = format!("file://{}", page.display());

    for (width, dark) in [(1280, false), (1280, true), (360, false), (360, true)] {
        browser.load(&url, width, dark);
        let seen = format!("at {width} px, dark {dark}");

        let charts = browser.value(CHARTS);
        let charts = charts.as_array().unwrap();
        // Two bars, three panels and a curve each; a raster of off, two of both others.
        assert_eq!(charts.len(), 2 * 6 + 5, "{seen}");
        for chart in charts {
            let number = |key: &str| chart[key].as_f64().unwrap();
            assert!(
                number("width") > 300.0 && number("height") > 50.0,
                "{seen}: {chart}"
            );
            assert!(
                number("paths") >= 1.0 && number("drawn") >= 4.0,
                "{seen}: {chart}"
            );
            assert_eq!(chart["outside"], json!([]), "{seen}: {chart}");
            let words = chart["words"].as_array().unwrap();
            assert!(
                words.iter().all(|length| length.as_u64() > Some(2)),
                "{seen}: {chart}"
            );
        }
        assert_eq!(browser.value(OVERLAPS), json!([]), "{seen}");

        let wide = browser.value("document.documentElement.scrollWidth");
        let wide = wide.as_u64().unwrap();
        assert!(
            wide <= u64::from(width),
            "{seen}: {wide} px, but only boxes scroll sideways"
        );
        let paper = browser.value("getComputedStyle(document.body).backgroundColor");
        let line = browser.value("getComputedStyle(document.querySelector('.s7')).stroke");
        let expected = match dark {
            true => ["rgb(21, 24, 29)", "rgb(179, 218, 255)"],
            false => ["rgb(255, 255, 255)", "rgb(8, 61, 119)"],
        };
        assert_eq!(
            [paper, line].map(|found| found.as_str().unwrap().to_owned()),
            expected
        );

        assert_eq!(
            browser.complaints(),
            Vec::<&serde_json::Value>::new(),
            "{seen}"
        );
        let elsewhere = browser.requests().into_iter().filter(|asked| *asked != url);
        let elsewhere = elsewhere.filter(|asked| !asked.starts_with("data:"));
        assert_eq!(elsewhere.count(), 0, "{seen}: {:?}", browser.requests());
    }
}

#[test]
fn results_and_scrollable_parts_are_reachable_by_keyboard() {
    let Some(mut browser) = browser::open() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (outage, page) = (blackout(folder.path()), folder.path().join("r.html"));
    let ran = simulate(&[&outage, "--report", page.to_str().unwrap()]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    browser.load(&format!("file://{}", page.display()), 360, false);

    let focused = "document.activeElement.className || document.activeElement.tagName";
    browser.press("Tab");
    assert_eq!(browser.value(focused), json!("skip"));
    let left = "document.activeElement.getBoundingClientRect().left";
    assert!(
        browser.value(left).as_f64() >= Some(0.0),
        "it is seen when it has the focus"
    );
    browser.value("document.activeElement.click()");
    assert_eq!(browser.value(focused), json!("MAIN"));
    browser.press("Tab");
    assert_eq!(
        browser.value(focused),
        json!("scroll"),
        "the table of numbers"
    );
    let unreachable = browser.value(
        "[...document.querySelectorAll('*')].filter(one => one.scrollWidth > one.clientWidth + 1
            && getComputedStyle(one).overflowX === 'auto'
            && !(one.tabIndex === 0 && one.getAttribute('role') === 'region'
                && (one.ariaLabel || one.getAttribute('aria-labelledby')))).length",
    );
    assert_eq!(unreachable, json!(0));
    let headings = browser
        .value("[...document.querySelectorAll('h1,h2,h3,h4')].map(one => Number(one.tagName[1]))");
    let levels: Vec<u64> = headings
        .as_array()
        .unwrap()
        .iter()
        .filter_map(serde_json::Value::as_u64)
        .collect();
    assert_eq!(levels.first(), Some(&1));
    assert!(
        levels.windows(2).all(|pair| pair[1] <= pair[0] + 1),
        "{levels:?}"
    );
}
